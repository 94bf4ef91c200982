"""A request in the engine: checked, as a sequence, with its blocks and its constraint."""
