"""The costs of the gateway by itself, before an engine that costs nothing."""
