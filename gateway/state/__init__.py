"""The stored state: tenants, keys, groups, prefixes, usage and audit, in SQLite or Redis."""
