"""What checkpoints have: tensors in files, their names, and which part of each a rank reads."""
