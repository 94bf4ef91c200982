"""The tensors in a model checkpoint's files, and the part of each tensor that a rank reads."""
