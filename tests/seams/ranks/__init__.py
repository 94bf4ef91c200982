"""Several ranks as one engine: they compute the same tokens, share one cache and end together."""
