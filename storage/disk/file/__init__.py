"""The LMDB file of the disk tier: records, seals, keys, and how much room it may take."""
