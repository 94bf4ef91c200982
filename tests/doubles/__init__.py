"""Named doubles that stand in for a package."""
