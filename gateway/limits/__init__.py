"""A tenant's limits: rates, concurrent requests, a budget. Reserved before, settled after."""
