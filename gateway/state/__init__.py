"""The stored state: tenants, keys, prefixes, responses, usage, audit, in SQLite or Redis."""
