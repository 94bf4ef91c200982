"""The router process: one router for all workers of a gateway.

Workers ask the router over a Unix socket in their shared directory. Only the router
subscribes to the engines' cache events. It knows the requests of all workers when it chooses. If
the router does not answer, a worker chooses by its own requests (`client.py`).
"""
