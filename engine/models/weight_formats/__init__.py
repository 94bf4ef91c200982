"""Weight formats, a file each: a matrix's tensors, their names, its shards, its product."""
