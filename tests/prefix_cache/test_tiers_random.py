"""Every block's contents stay right in random operations on three small tiers.

Copies end late, in any order, and may fail. Meanwhile the disk is emptied and the process killed.
Complete checks take longer than the operations, so long runs check after every eighth operation,
short runs after each. In `make test-zoo` long runs are four times as long.
"""

from __future__ import annotations

import pytest

from prefix_cache.tiers.in_flight import CopyOutcome
from prefix_cache.tree.residency import DISK
from tests.prefix_cache.support.scene import ConstantDigest, path, tokens
from tests.prefix_cache.support.tiers_driver import TiersDriver
from tests.prefix_cache.support.tiers_scene import TierScene

SHAPES = [
    # seed, device, host, disk, block size, longest prompt, writes at once, moves ahead
    (1, 12, 14, 30, 2, 12, 64, 0),
    (2, 14, 0, 24, 2, 12, 4, 0),
    (3, 14, 10, 0, 2, 12, 4, 2),
    (4, 16, 12, 48, 2, 14, 2, 3),
    (5, 10, 4, 6, 3, 14, 3, 0),
]


def _driver(shape: tuple[int, int, int, int, int, int, int, int], check_every: int) -> TiersDriver:
    seed, device, host, disk, size, longest, writes, ahead = shape
    scene = TierScene(device, size, host=host, disk=disk, max_disk_writes=writes, ahead=ahead)
    return TiersDriver(seed, scene, max_tokens=longest, check_every=check_every)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_ready_lease_always_holds_the_right_content(
    shape: tuple[int, int, int, int, int, int, int, int],
) -> None:
    driver = _driver(shape, check_every=8)
    driver.run(5_000)
    _expect_seen_often(driver, 5)


@pytest.mark.zoo
@pytest.mark.parametrize("shape", SHAPES)
def test_also_after_rare_events_a_ready_lease_holds_the_right_content(
    shape: tuple[int, int, int, int, int, int, int, int],
) -> None:
    driver = _driver(shape, check_every=8)
    driver.run(20_000)
    _expect_seen_often(driver, 30)
    seen = driver.seen
    assert seen["failed"] > 3
    if driver.scene.tiers.disk_blocks:
        assert min(seen["restored"], seen["erased"], seen["saved"]) > 10
        assert seen["lost disk to device"] > 3
    if driver.scene.tiers.host_blocks:
        assert min(seen["failed device to host"], seen["lost host to device"]) > 3
        assert seen["promised"] > 5


def _expect_seen_often(driver: TiersDriver, times: int) -> None:
    often = ("hits", "loading", "waited", "refused", "moves", "warmed")
    assert min(driver.seen[what] for what in often) > times
    followed = driver.waiting.seen
    assert min(followed[what] for what in ("gone", "held", "split", "went on")) > times


@pytest.mark.parametrize("shape", SHAPES)
def test_every_count_is_right_after_every_operation(
    shape: tuple[int, int, int, int, int, int, int, int],
) -> None:
    driver = _driver((shape[0] + 100, *shape[1:]), check_every=1)
    driver.run(600)
    assert min(driver.seen[what] for what in ("hits", "refused", "moves")) > 10


@pytest.mark.parametrize("shape", SHAPES)
def test_every_count_is_right_while_prefixes_are_marked_and_forgotten(
    shape: tuple[int, int, int, int, int, int, int, int],
) -> None:
    seed, device, host, disk, size, longest, writes, ahead = shape
    scene = TierScene(device, size, host=host, disk=disk, max_disk_writes=writes, ahead=ahead)
    driver = TiersDriver(seed, scene, max_tokens=longest, check_every=2, marks=8.0)
    driver.run(2_000)
    assert min(driver.seen[what] for what in ("hits", "retained", "forgotten", "moves")) > 10


def test_with_a_constant_hash_nothing_wrong_is_ever_found() -> None:
    scene = TierScene(12, 2, host=10, disk=20, digest=ConstantDigest())
    driver = TiersDriver(9, scene, max_tokens=12, check_every=2)
    driver.run(2_500)
    assert min(driver.seen["hits"], driver.seen["loading"], driver.seen["moves"]) > 10


def test_a_stop_at_any_moment_saves_every_block() -> None:
    num_saved = 0
    for seed in range(60):
        scene = TierScene(14, 2, host=14, disk=400)
        driver = TiersDriver(seed, scene, max_tokens=14, check_every=50, bad=0.0)
        driver.act(150)
        driver.end_all()
        while scene.cache.restart.save(100) or len(scene.cache.in_flight):
            scene.take_plan()
            scene.complete([(next(iter(scene.under_way)), CopyOutcome.DONE)])
        edges = [node.edge for node in scene.cache.tree.nodes()]
        assert all((edge.states & DISK).all() for edge in edges), seed
        num_saved += sum(map(len, edges))
    assert num_saved > 60


@pytest.mark.parametrize("outcome", [CopyOutcome.FAILED, CopyOutcome.LOST])
@pytest.mark.parametrize("nth", range(1, 25))
def test_the_nth_copy_comes_to_nothing(nth: int, outcome: CopyOutcome) -> None:
    """Let one copy of a fixed series fail, each in turn: every answer is right."""
    scene = TierScene(6, 2, host=5, disk=12, max_disk_writes=3)
    prompts = [tokens(*(2 * [n] + [1, 2, 3, 4, n])) for n in (5, 6, 7)] + [tokens(5, 5, 1, 2, 3, 4)]
    copies = 0

    def end_all() -> None:
        nonlocal copies
        scene.take_plan()
        for move in list(scene.under_way):
            copies += 1
            scene.complete([(move, outcome if copies == nth else CopyOutcome.DONE)])
            scene.cache.check_invariants()

    for _ in range(4):
        for ids in prompts:
            lease = None
            for _ in range(50):
                lease = lease or scene.acquire_loading(path("a"), ids, None)
                if lease is not None and lease.failed:
                    scene.release(lease)
                    lease = None
                elif lease is not None and lease.ready:
                    break
                end_all()
            assert lease is not None
            scene.compute(lease, ids, lease.cached_tokens, len(ids))
            scene.commit(lease, ids)
            assert scene.read(lease, len(ids)) == scene.kv(path("a"), ids)
            scene.release(lease)
            scene.check_contents()
    assert copies >= nth
    scene.copy_all()
    scene.cache.flush()
    scene.copy_all()
    assert scene.cache.capacity.pool().free == 6
    assert scene.records == {}
