"""A pin keeps a cached prefix in the cache until the pin is released, and takes no new block."""

from __future__ import annotations

from prefix_cache.leases.lease import Lease
from tests.prefix_cache.support.scene import Scene, path, tokens

PREFIX = tokens(*range(12))


def pin(scene: Scene, owner: str = "published") -> Lease | None:
    lease = scene.cache.pin(path("published"), PREFIX, owner=owner, now=scene.tick())
    scene.cache.check_invariants()
    return lease


def test_a_prefix_that_is_not_all_cached_is_not_pinned() -> None:
    scene = Scene(16)
    assert pin(scene) is None
    scene.run(path("published"), PREFIX[:8], "tenant")
    assert pin(scene) is None
    scene.run(path("published"), PREFIX, "tenant")
    lease = pin(scene)
    assert lease is not None
    assert (lease.num_blocks, lease.cached_tokens, len(lease.own_blocks())) == (3, 12, 0)


def test_a_pin_takes_no_block_and_changes_the_owner() -> None:
    scene = Scene(16)
    scene.run(path("published"), PREFIX, "tenant")
    before = scene.cache.capacity.pool()
    lease = pin(scene)
    after = scene.cache.capacity.pool()
    assert (after.free, after.evictable) == (before.free, before.evictable - 3)
    owners = {name: use.blocks_held for name, use in scene.cache.capacity.owners().items()}
    assert owners == {"tenant": 0, "published": 3}
    assert lease is not None
    scene.release(lease)
    assert scene.cache.capacity.pool() == before


def test_a_pinned_prefix_stays_under_pressure_until_it_is_released() -> None:
    scene = Scene(8)
    scene.run(path("published"), PREFIX, "tenant")
    lease = pin(scene)
    for seed in range(4):
        other = scene.acquire(path("other"), tokens(*range(100 * seed, 100 * seed + 20)))
        assert other is not None
        scene.release(other)
    assert scene.matches(path("published"), PREFIX) == 12
    # there is no room for six blocks
    assert scene.acquire(path("other"), tokens(*range(24))) is None
    assert lease is not None
    scene.release(lease)
    other = scene.acquire(path("other"), tokens(*range(24)))
    assert other is not None
    assert scene.matches(path("published"), PREFIX) < 12


def test_a_part_of_a_run_is_pinned_alone() -> None:
    scene = Scene(16)
    scene.run(path("published"), tokens(*range(24)), "tenant")
    lease = pin(scene)
    assert lease is not None
    owners = {name: use.blocks_held for name, use in scene.cache.capacity.owners().items()}
    assert owners == {"tenant": 3, "published": 3}
    assert scene.cache.flush(owner="tenant") == 3
    assert lease.node.attached
    assert scene.cache.flush() == 3
    assert not lease.node.attached
    scene.release(lease)
    assert scene.cache.capacity.pool().free == 16
