"""The diagnosis of cache misses: the earlier prompt, and its difference from the new one.

Knows: a tenant's own recent prompts as tokens, and the text of volatile things. Does not know: any
dialect, other tenants, or for which tenant the engine evicts blocks.
"""
