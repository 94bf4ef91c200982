"""Named test doubles, in one file for each component that they replace."""
