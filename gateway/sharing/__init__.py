"""Which requests share cached blocks: namespaces, published prefixes, quotas and partitions."""
