"""A step on the device: batches, captured graphs, shared prefixes."""
