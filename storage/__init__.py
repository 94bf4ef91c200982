"""Storage of bytes in tiers, and moves between tiers. This package knows no tenants or tokens.

    tier_mover     moves blocks between all tiers; to and from the disk by `disk_route`
    copies, disk   copies between device and host; records on disk, in a process of its own
    pools          memory of KV blocks, recurrent states and rings
    batched_copies, layerwise_load    many copies in one call; loads that steps wait for, by layer
    layouts        the bytes of a block, a state and a ring
    runs, move, free_memory, waiting, errors

Each module imports only modules listed below it.
"""
