"""A tenant's own prefixes in the cache, beyond the protocols: look, warm, list and delete."""
