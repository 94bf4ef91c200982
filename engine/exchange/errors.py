"""The errors of the exchange that end the engine."""


class ThreadEnded(RuntimeError):
    """An error of the engine: a thread of the exchange died, so its leases would never end."""
