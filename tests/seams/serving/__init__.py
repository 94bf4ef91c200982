"""`ratoon serve` as users start it: its processes, failing starts, and clients."""
