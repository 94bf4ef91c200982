"""The decode attention: it divides the keys of a row among programs, and merges the results."""
