"""The operator's routes, which need the admin key.

Elsewhere: the routes that only the operator's page uses (`gateway.overview`).
"""
