"""What is charged at random: the engine's own count against usage, budgets and rates."""
