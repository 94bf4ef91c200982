"""Kernels that read and write the memory of other GPUs (peer memory), by which ranks exchange."""
