"""The router process: one router for all workers of a gateway.

Workers ask the router over a Unix socket in their shared directory. The router subscribes to the
engines' caches instead of the workers. The router chooses for many workers like a single worker. If
the router does not answer, a worker chooses by its own requests (`client.py`).
"""
