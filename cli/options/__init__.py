"""Every flag once, its variable and its help."""
