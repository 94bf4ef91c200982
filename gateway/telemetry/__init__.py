"""Telemetry for operators: metrics, logs, traces."""
