"""The served architectures, one file each, and their registry."""
