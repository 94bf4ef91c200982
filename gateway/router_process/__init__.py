"""The router process: one router for all workers of a gateway.

Workers ask it over a Unix socket in the directory that they share, and it subscribes to the
engines' caches in their place: so what it chooses for W workers is what one worker would choose.
Where it does not answer, a worker chooses by its own requests (`client.py`).
"""
