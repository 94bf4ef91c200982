"""The routing of a request to one of several equal engines, by their caches and loads.

Callers ask `route.py`, which asks a router (`routers`). Routers look into what is known of each
replica (`known`). `remote_prefill.py` decides which prompts another engine computes.
"""
