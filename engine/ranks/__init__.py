"""The processes that compute one model together, each with a part of the model.

`engine.models` divides the model: each layer in `shards.py`, the list of layers in `stages.py`.
"""
