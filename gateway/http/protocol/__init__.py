"""One HTTP connection: its bytes, heads, bodies, deadlines and refusals.

Knows: framing, bounds, turns. Does not know: routes, or what is in a body.
"""
