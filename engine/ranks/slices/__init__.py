"""Slices of blocks that go to other engines and come from them, each rank's by threads of its own.

Rank 0 decides: `lending.py`, `fetching.py`, both as one in `exchange.py`. Another rank does what it
is told: `lent.py`, `fetched.py`, both as one in `rank_exchange.py`.
"""
