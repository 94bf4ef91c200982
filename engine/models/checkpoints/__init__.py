"""The tensors in a checkpoint's files, and the part of each tensor that a rank reads."""
