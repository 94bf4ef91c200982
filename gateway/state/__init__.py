"""Tenants, keys, groups, published prefixes, usage and the audit log, in SQLite or in Redis."""
