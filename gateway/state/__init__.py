"""The stored state: tenants, keys, groups, published prefixes, usage and audit, in SQLite or
Redis."""
