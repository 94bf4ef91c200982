"""`ratoon lint`: finds what will keep a request from the cache, before it is sent."""
