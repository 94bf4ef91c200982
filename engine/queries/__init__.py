"""What gateways and operators ask and order of the whole cache, and the engine's reports."""
