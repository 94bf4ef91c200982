"""What ranks exchange, and what engines fetch from each other."""
