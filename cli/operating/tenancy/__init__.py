"""Commands that operate tenants: their keys, limits, groups and adapters."""
