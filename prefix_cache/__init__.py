"""The prefix cache: which KV blocks to keep, evict and share. No torch, no I/O, no own clock.

    cache                          the one object that the engine talks to
    commit, restart, invariants    blocks enter the tree; it is read back; it is checked
    leases      what a running sequence holds; loads that it waits for; what is kept for tenants
    tiers       slots of the device, the host and the disk; copies between them; whose go
    eviction    which block goes next: policies, quotas, reference counts
    tree        the radix tree: what is cached, and in which tiers
    namespace, hashing, names, errors

Each imports only from those below it. When a pool is full: whose block goes is said in
`eviction/victim_queue.py`, which of theirs in `eviction/eviction_policy.py`, and whether it is
copied down first in `tiers/offloader.py`.
"""
