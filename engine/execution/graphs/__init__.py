"""The steps captured as CUDA graphs. A replay is one launch instead of several hundred."""
