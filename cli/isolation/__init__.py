"""Asks a running server, with a stopwatch too, whether tenants can tell what others asked."""
