"""`ratoon plan`: a model's costs and memory needs on given GPUs.

It counts bytes and FLOPs (`decoder.py`) and makes times of them (`machine.py`); `gpus.py` has the
GPUs that are known by name.
"""
