"""Which requests share cached blocks: namespaces, published prefixes, partitions. And flushes."""
