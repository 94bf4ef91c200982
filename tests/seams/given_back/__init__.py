"""What is taken is given back, however waits for it end: at random, from a seed."""
