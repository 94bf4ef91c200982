"""A modelled H200: the engine's own core, before a device and copies that take only time."""
