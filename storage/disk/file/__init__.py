"""The LMDB file of the disk tier: records, seals, keys, and the bound on its size."""
