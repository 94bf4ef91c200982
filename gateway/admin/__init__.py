"""The operator's routes, which need the admin key."""
