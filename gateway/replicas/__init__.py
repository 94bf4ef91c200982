"""Several engines that serve the same model, used as one `Engine`.

`gateway.routing` chooses the engine for a request.
"""
