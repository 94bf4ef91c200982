"""The sentinel: it checks the cache by computing some answers again without the cache."""
