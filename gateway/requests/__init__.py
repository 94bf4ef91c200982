"""One request between a dialect and the engine: admitted, permitted, generated, measured, charged.

`answering.py` has the order. Knows no dialect; how limits are counted is in `gateway/limits`.
"""
