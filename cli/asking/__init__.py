"""Commands that send requests to a running server as one of its tenants."""
