"""The sentinel: to check the cache, it computes some answers to cached prompts again without it."""
