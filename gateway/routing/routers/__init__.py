"""The routers, each of which chooses a replica for a request.

`fetching.py` decides which blocks the chosen replica fetches from another replica.
"""
