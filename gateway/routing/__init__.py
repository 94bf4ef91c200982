"""The routing of a request to one of several equal engines, by their caches and loads.

Callers ask `route.py`, which asks a router. `fetching.py` decides which blocks a replica fetches
from another replica. `remote_prefill.py` decides which prompts another engine computes.
"""
