"""The served architectures, one file for each family, and their registry."""
