"""Authentication: keys, callers, secrets, and the end of requests whose key became invalid."""
