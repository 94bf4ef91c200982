"""The state: tenants, keys, groups, published prefixes, usage, audit, in SQLite or Redis."""
