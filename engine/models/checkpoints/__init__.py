"""The tensors in a checkpoint's files, and which part of each a rank reads."""
