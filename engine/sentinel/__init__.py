"""The sentinel: some answers to cached prompts are computed again without the cache.

The sentinel decides which answers and when, and compares the results; the core runs its requests.
"""
