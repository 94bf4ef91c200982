"""Layouts: where the bytes of a block, a state and a ring are, for the layers of a stage."""
