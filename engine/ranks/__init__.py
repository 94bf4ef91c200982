"""The ranks: processes that compute one model together, each with a part of the model.

The model is divided in `engine.models`: each layer in `shards.py`, the layers in `stages.py`.
"""
