"""One request between a dialect and the engine: admitted, permitted, generated, measured, charged.

`answering.py` has the order. `gateway/limits` counts limits.
"""
