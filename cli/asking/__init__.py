"""Commands that ask a running server as one of its tenants."""
