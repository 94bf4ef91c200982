"""The decode attention: the keys of a row divided among programs, and the results merged."""
