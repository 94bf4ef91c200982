"""One HTTP connection: its bytes, heads, bodies, deadlines and refusals."""
