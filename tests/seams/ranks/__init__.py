"""Several ranks as one engine: the same tokens, one cache, one life."""
