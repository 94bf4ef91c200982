"""Storage of bytes in tiers, and moves between tiers. Knows neither tenants nor tokens.

    tier_mover     moves blocks between all tiers, and to the disk by `disk_route`
    copies, disk   copies between device and host; records on disk, in a process of its own
    device_pool, host_pool
    batched_copies, layerwise_load    many copies in one call; loads that steps wait for, by layer
    kv_layout      where a block's bytes are
    stage, runs, move, free_memory, waiting, errors

Each imports only from those below it.
"""
