"""`ratoon simulate`: the hit rate of a cache, or of several replicas' caches, on a trace.

It replays requests through the prefix cache itself, without a byte of KV (`replay.py`), and takes
the times of `cli/plan/machine.py`.
"""
