"""Tests of gateway/telemetry/."""
