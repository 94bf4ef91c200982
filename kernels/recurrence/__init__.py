"""The kernels of recurrent layers, whose state has a fixed size: Gated DeltaNet and Mamba-2."""
