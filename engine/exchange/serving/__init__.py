"""The serving of blocks: which may be sent to other engines, and the thread that answers."""
