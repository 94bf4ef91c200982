"""Which of several equal engines a request is sent to: what is cached where, what each has to do.

Knows block keys, tiers, tokens and seconds. Does not know tenants, connections, or which engines
are alive.
"""
