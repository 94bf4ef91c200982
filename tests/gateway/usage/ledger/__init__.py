"""Random charges: the engine's own count, compared with usage, budgets and rates."""
