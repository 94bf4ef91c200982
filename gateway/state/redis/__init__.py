"""The store of several gateways: Redis, its keys, changes as transactions."""
