"""The kernels between GEMMs: norms and gates."""
