"""Moves bytes between tiers. Knows neither tenants nor tokens."""
