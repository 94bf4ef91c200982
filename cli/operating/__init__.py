"""The commands that operate a running server over its admin routes."""
