"""Layouts: the bytes of a block, a state and a ring, for the layers of a stage."""
