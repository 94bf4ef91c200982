"""The serving of KV blocks to other engines: which blocks may be sent, and the serving thread."""
