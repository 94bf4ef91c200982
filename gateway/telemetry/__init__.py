"""The telemetry for operators: metrics, logs, traces.

A metric that a gateway counts itself is declared in `instruments.py`, or in `routing_metrics.py` if
it is about routing; a metric that an engine counts is declared in `engine_metrics.py`.
"""
