"""A tenant's limits: rates, concurrent requests, a budget; reserved before, charged after.

`token_bucket.py` has the rules, which `scripts.py` has again in Lua for Redis; `guarded.py` says
what a gateway grants by itself while Redis is away.
"""
