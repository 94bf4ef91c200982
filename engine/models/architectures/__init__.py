"""The architectures that are served, a file for each, and their registry."""
