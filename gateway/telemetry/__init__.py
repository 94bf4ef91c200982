"""The telemetry for operators: metrics, logs, traces.

`instruments.py` declares the metrics that a gateway counts, and `routing_metrics.py` the metrics of
routing. `engine_metrics.py` declares the metrics that an engine counts.
"""
