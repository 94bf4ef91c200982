"""Models given to commands: finding their files, and the checks before a start."""
