"""The costs of the gateway alone, in front of an engine that costs nothing."""
