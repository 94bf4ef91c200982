"""The sentinel, which computes some answers to cached prompts again without the cache."""
