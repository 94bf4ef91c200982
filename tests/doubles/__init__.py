"""Named test doubles, one file for each part that they replace."""
