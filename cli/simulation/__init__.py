"""`ratoon simulate`: what a cache, or the caches of several replicas, would find of a trace.

It replays requests through the prefix cache itself, without a byte of KV (`replay.py`), and takes
the times of `cli/plan/machine.py`.
"""
