"""Blocks in use: leases, reference counts, free blocks, requests for the same prefix at once."""
