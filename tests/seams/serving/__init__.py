"""`ratoon serve` as users start it: its processes, starts that fail, clients."""
