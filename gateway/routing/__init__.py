"""The routing of a request to one of several equal engines, by their caches and loads.

Callers ask `route.py`, which asks a router. `fetching.py` decides which blocks a replica fetches
from another replica, `remote_prefill.py` which prompts another engine computes.

Knows block keys, tiers, tokens and seconds. Does not know tenants, connections, or which engines
are alive.
"""
