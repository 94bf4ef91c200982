"""The requests in the engine: their validation, sequences, KV blocks and constraints."""
