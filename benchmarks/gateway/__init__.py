"""What the gateway takes by itself, before an engine that costs nothing."""
