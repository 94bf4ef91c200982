"""The engine as a whole, with its cache: random worlds, spies, failures at every point."""
