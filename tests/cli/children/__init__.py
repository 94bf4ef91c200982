"""Small scripts that stand in for the gateway and the engine, and one that watches them."""
