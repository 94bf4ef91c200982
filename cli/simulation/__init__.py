"""`ratoon simulate`: the hit rate of a cache, or of several replicas' caches, on a trace.

`replay.py` replays requests through the prefix cache itself, without a byte of KV.
`cli/plan/machine.py` estimates the times.
"""
