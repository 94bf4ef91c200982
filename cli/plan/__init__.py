"""`ratoon plan`: a model's costs and memory needs on given GPUs.

`decoder.py` counts bytes and FLOPs, `machine.py` estimates times from them, and `gpus.py` has the
GPUs known by name.
"""
