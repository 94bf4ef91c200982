"""The diagnosis of cache misses: what was asked before, and what differs from it.

Knows: a tenant's own recent prompts as tokens, and the text of volatile things. Does not know: any
dialect, other tenants, or what the engine evicts for whom.
"""
