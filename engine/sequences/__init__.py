"""The requests in the engine: their checks, sequences, KV blocks and constraints."""
