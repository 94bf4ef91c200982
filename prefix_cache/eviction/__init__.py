"""The order in which cached blocks go: the policies, the owners' quotas, the reference counts.

Knows: nodes of the tree, owners, what is held. Does not know: slots, copies or leases.
"""
