"""One HTTP connection: its bytes, heads, bodies, deadlines and refusals.

Knows: framing, bounds, turns of connections. Does not know: routes, or the content of bodies.
"""
