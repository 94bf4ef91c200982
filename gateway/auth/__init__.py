"""Authentication: keys, callers, secrets, and the end of requests whose key has ended."""
