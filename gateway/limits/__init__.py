"""What a tenant may use: rates, requests at once, a budget. Reserved before, settled after."""
