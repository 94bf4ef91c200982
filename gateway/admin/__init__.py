"""The operator's routes, under the admin key."""
