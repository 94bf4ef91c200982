"""The diagnosis of cache misses: the earlier prompt, and its difference from the new prompt.

Only the tenant's own recent prompts are compared.
"""
