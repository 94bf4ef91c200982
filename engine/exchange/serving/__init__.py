"""The serving of KV blocks: which may be sent to other engines, and the thread that answers."""
