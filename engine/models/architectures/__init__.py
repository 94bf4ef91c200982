"""The served architectures, one file for each family, their registry, and its reader of configs."""
