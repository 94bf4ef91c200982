"""Blocks and counts stay right in random operations on three small tiers while quotas change.

Every block is right, every count adds up, and no sequence waits for ever.
"""

from __future__ import annotations

import pytest

from prefix_cache.eviction.shares import Quota
from tests.prefix_cache.support.driver import OWNERS
from tests.prefix_cache.support.quota_scene import QuotaDriver, QuotaScene

SHAPES = [
    # seed, device, host, disk, block size, writes at once, moves ahead
    (1, 12, 14, 30, 2, 64, 0),
    (2, 14, 0, 24, 2, 4, 0),
    (3, 14, 10, 0, 2, 4, 2),
    (4, 16, 12, 48, 2, 2, 3),
    (5, 10, 4, 6, 3, 3, 0),
    (6, 12, 0, 0, 2, 1, 0),
]
Shape = tuple[int, int, int, int, int, int, int]


def driver(shape: Shape, check_every: int) -> QuotaDriver:
    seed, device, host, disk, size, writes, ahead = shape
    scene = QuotaScene(
        device,
        size,
        quotas={"anna": Quota(0.3, 0.5), "ben": Quota(weight=2.0)},
        host=host,
        disk=disk,
        max_disk_writes=writes,
        ahead=ahead,
    )
    return QuotaDriver(seed, scene, OWNERS, check_every=check_every)


@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_and_counts_are_right_while_quotas_change(shape: Shape) -> None:
    one = driver(shape, check_every=4)
    one.run(2_000)
    assert min(one.seen["hits"], one.seen["refused"]) > 5
    if shape[2] or shape[3]:
        assert min(one.seen["loading"], one.seen["moves"]) > 0
