"""The telemetry for operators: metrics, logs, traces.

A metric that a gateway counts itself is declared in `instruments.py`, or in `routing_metrics.py`
if it is of several engines; one that an engine counts in `engine_metrics.py`.
"""
