"""The costs of what ranks exchange, and of what engines fetch from each other."""
