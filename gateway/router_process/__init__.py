"""The router process: one router for all workers of a gateway.

Workers ask the router over a Unix socket in their shared directory, and the router subscribes to
the engines' caches in their place: so it chooses for many workers as one worker would choose alone.
If the router does not answer, a worker chooses by its own requests (`client.py`).
"""
