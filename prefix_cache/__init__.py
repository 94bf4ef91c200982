"""The prefix cache, which decides which KV blocks to keep, evict and share.

This package uses no torch, no I/O and no clock.

    cache                          the one object that the engine talks to
    commit, restart, invariants    growth of the tree; its restoring at a start; its checks
    planned_moves                  moves between tiers: planned, completed
    leases      blocks of running sequences; their loads; prefixes kept for tenants
    tiers       slots of the device, the host and the disk; copies between tiers; removals
    eviction    the choice of blocks to evict: policies, quotas, reference counts
    tree        the radix tree of cached blocks, and the tiers of each block
    namespace, hashing, names, errors

Each module imports only from modules below it. When a pool is full, `eviction/victim_queue.py`
chooses the owner who gives up a block, and `eviction/eviction_policy.py` chooses the block.
`tiers/offloader.py` decides whether the block is first copied to a lower tier.
"""
