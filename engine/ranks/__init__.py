"""Several processes that compute one model together, each with a part of it.

What each has is divided in `engine.models`: a layer in `shards.py`, the layers in `stages.py`.
"""
