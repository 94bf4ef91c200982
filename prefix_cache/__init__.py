"""The prefix cache: which KV blocks to keep, evict and share. No torch, no I/O, no own clock.

    cache                          the one object that the engine talks to
    commit, restart, invariants    blocks enter the tree; it is read back; it is checked
    leases      what a running sequence holds; loads that it waits for; what is kept for tenants
    tiers       slots of the device, the host and the disk; copies between them; whose go
    eviction    which block goes next: policies, quotas, reference counts
    tree        the radix tree: what is cached, and in which tiers
    namespace, hashing, names, errors

Each imports only from those below it. When a pool is full, `eviction/victim_queue.py` chooses the
owner who gives up a block, `eviction/eviction_policy.py` chooses the block, and
`tiers/offloader.py` decides whether the block is first copied to a lower tier.
"""
