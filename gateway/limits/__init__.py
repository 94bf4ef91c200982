"""A tenant's limits: rates, concurrent requests, a budget.

Requests reserve before their work and are charged after it. `token_bucket.py` has the rules, and
`scripts.py` the same rules in Lua for Redis. `guarded.py` has the rules by which a gateway decides
alone while Redis is away.
"""
