"""The operator's routes for tenants and groups: their keys, adapters and erasure receipts."""
