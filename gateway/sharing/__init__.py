"""The sharing of cached blocks: namespaces, published prefixes, partitions, flushes."""
