"""Commands that show how a running server is doing."""
