"""The eviction order of cached blocks: policies, owners' quotas, reference counts.

Knows: nodes of the tree, owners, what is held. Does not know: slots, copies or leases.
"""
