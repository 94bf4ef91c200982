"""Models as commands name them: their files, and the checks before a start."""
