"""`ratoon serve`, `gateway` and `engine`: the configs and the state of a server from flags."""
