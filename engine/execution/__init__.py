"""The execution of a step on the device: batches, captured graphs, shared prefixes."""
