"""Samples the next token of every row, on the device, from logits and sampling parameters."""
