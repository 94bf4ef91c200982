"""The sampling of every row's next token on the device, from logits and sampling parameters."""
