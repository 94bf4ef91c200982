"""A simulated H200: the engine's own core, with a device and copies that only take time."""
