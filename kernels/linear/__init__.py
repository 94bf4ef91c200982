"""The matrix products (GEMMs) of a layer."""
