"""Small scripts that stand in for the gateway and the engine, and a script that supervises them."""
