"""The prefix cache: which KV blocks to keep, evict and share. No torch, no I/O, no own clock.

    cache                          the one object that the engine talks to
    commit, restart, invariants    the tree grows; is restored after a start; is checked
    leases      blocks of running sequences; loads they wait for; prefixes kept for tenants
    tiers       slots of the device, the host and the disk; copies between tiers; removals
    eviction    which block is evicted next: policies, quotas, reference counts
    tree        the radix tree: which blocks are cached, and in which tiers
    namespace, hashing, names, errors

Each module imports only from modules below it. When a pool is full, `eviction/victim_queue.py`
chooses the owner who gives up a block, and `eviction/eviction_policy.py` chooses the block.
`tiers/offloader.py` decides whether the block is first copied to a lower tier.
"""
