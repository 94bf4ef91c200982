"""Chooses the next token of every row, on the device, from the logits and the row's wishes."""
