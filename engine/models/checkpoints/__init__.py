"""The tensors in a checkpoint's files, and the part of each that a rank reads."""
