"""Architectures with recurrent states: Gated DeltaNet or Mamba-2 in most layers."""
