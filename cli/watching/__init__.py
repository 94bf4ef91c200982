"""Commands that show the state of a running server."""
