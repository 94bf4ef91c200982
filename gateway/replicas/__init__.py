"""Several engines that serve the same model, used as one `Engine`.

Which of them is chosen for a request is decided in `gateway.routing`.
"""
