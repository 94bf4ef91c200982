"""The link between gateway and engine: its messages and both ends."""
