"""The sentinel: some answers to cached prompts are computed again without the cache.

It decides which answers, when, and whether both agree; the core runs the requests for it.
"""
