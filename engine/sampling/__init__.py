"""The sampling of each row's next token on the device, from logits and sampling parameters."""
