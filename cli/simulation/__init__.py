"""`ratoon simulate` and `ratoon plan`: what a cache would find, what a model would cost and need.

The first replays traces through the prefix cache itself, without a byte of KV (`replay.py`); the
second counts bytes and FLOPs (`decoder.py`), for GPUs that `gpus.py` lists. `machine.py` has the
times of both.
"""
