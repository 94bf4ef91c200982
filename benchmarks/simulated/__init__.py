"""Replays of traces and texts for decisions of the house: routers side by side, and drafters.

They run the code that serves (routers, caches, drafters) without computing a token. For the hit
rates of one cache there is `ratoon simulate`.
"""
