"""The engine's counters, and the report that it sends of them."""
