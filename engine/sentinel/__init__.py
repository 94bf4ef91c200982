"""The sentinel: now and then an answer whose prompt came from the cache is computed again without.

It decides which answers, when, and whether the two agree; the core runs the requests it asks for.
"""
