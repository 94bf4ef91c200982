"""Random requests: the engine's own counts, compared with usage, budgets and rates."""
