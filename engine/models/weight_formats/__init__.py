"""The weight formats, a file each: the tensors of a matrix, their names, shards, and product."""
