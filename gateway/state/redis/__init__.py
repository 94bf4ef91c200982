"""The store of several gateways: Redis, its keys, and changes as transactions."""
