"""The routing of a request to one of several equal engines, by their caches and loads.

Callers ask `route.py`, which asks a router. What a replica fetches from another one rather than
computing it is said in `fetching.py`, which prompts are computed on an engine of their own in
`remote_prefill.py`.

Knows block keys, tiers, tokens and seconds. Does not know tenants, connections, or which engines
are alive.
"""
