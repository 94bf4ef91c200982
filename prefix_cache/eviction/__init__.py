"""The eviction order of cached blocks: policies, owners' quotas, reference counts.

Knows: nodes of the tree, owners, which nodes leases hold. Does not know: slots, copies or leases.
"""
