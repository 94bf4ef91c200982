"""`ratoon lint`: what of a request will keep it from the cache, before anything is sent."""
