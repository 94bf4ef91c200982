"""A listener that applies a snapshot's pieces and the later changes has the tree's contents.

Random operations on all tiers, as in `test_tiers_random`; after each, the listener is compared with
the tree, block by block.
"""

from __future__ import annotations

from collections import Counter

import pytest

from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import KEY_BYTES
from prefix_cache.tree.changes import ChangeLog, Kind, TreeChange
from prefix_cache.tree.snapshot import Snapshot
from storage.move import Tier
from tests.prefix_cache.support.scene import Scene, path, tokens
from tests.prefix_cache.support.tiers_driver import TiersDriver
from tests.prefix_cache.support.tiers_scene import TierScene

SHAPES = [
    # seed, device, host, disk, blocks in a piece
    (1, 14, 12, 30, 1),
    (2, 30, 20, 40, 9),
    (3, 14, 0, 24, 4),
    (4, 40, 0, 0, 3),
]


def held_by(cache: PrefixCache) -> dict[bytes, Tier]:
    """Return every block of the tree by its key, with the fastest tier that has the block."""
    return {
        node.edge.key(at): tier
        for node in cache.tree.nodes()
        for tier in Tier
        for at in range(*node.edge.run_in(tier))
    }


class Listener:
    """A listener to one cache's changes, like the router's index."""

    def __init__(self, cache: PrefixCache, seen: Counter[str], blocks: int) -> None:
        cache.tree.changes = self._log = ChangeLog()
        self.cache = cache
        self.snapshot = Snapshot(cache.tree)
        self.held: dict[bytes, Tier] = {}
        self._seen = seen
        self._blocks = blocks

    def hear(self, *, more: bool) -> None:
        changes = self._log.take()
        assert changes is not None
        self._apply(changes)
        if more and not self.snapshot.is_over:
            self._apply(self.snapshot.take(self._blocks))
            self._seen["pieces"] += 1

    def _apply(self, changes: list[TreeChange]) -> None:
        for kind, tier, keys in changes:
            self._seen[kind.value] += 1
            for at in range(0, len(keys), KEY_BYTES):
                if tier is None:
                    self.held.pop(keys[at : at + KEY_BYTES], None)
                else:
                    self.held[keys[at : at + KEY_BYTES]] = tier

    def check(self) -> None:
        there = held_by(self.cache)
        if self.snapshot.is_over:
            assert self.held == there
            self._seen["compared"] += 1
        else:  # complete except for events still to come
            assert self.held.items() <= there.items()


@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_and_changes_together_are_the_tree(shape: tuple[int, int, int, int, int]) -> None:
    seed, device, host, disk, blocks = shape
    scene = TierScene(device, 2, host=host, disk=disk, max_disk_writes=4, ahead=2)
    driver = TiersDriver(seed, scene, max_tokens=12, check_every=8)
    seen: Counter[str] = Counter()
    listener = Listener(scene.cache, seen, blocks)
    acts, weights = list(driver._acts), list(driver._acts.values())
    for _ in range(7_000):
        driver.random.choices(acts, weights)[0]()
        dice = driver.random.random()
        # after a restart all blocks come from the disk
        if dice < 0.002 or listener.cache is not scene.cache:
            listener = Listener(scene.cache, seen, blocks)
        listener.hear(more=dice < 0.3)
        listener.check()
    kinds = ("added", "removed", "pieces", "compared", *(("moved",) if host else ()))
    assert min(seen[kind] for kind in kinds) > 100, seen


def test_what_a_snapshot_has_yet_to_visit_may_be_split_and_lose_its_end() -> None:
    scene = Scene(64, 2)
    where, ids = path("tenant"), tokens(*range(16))
    scene.run(where, ids)
    listener = Listener(scene.cache, Counter(), blocks=1)
    scene.run(where, tokens(*range(8), 50, 51, 52, 53))  # splits the node after 4 blocks
    [upper] = scene.cache.tree.root.children.values()
    lower = upper.children[upper.namespace + ids[8:10].tobytes()]
    scene.cache.capacity.removals.prune_from(lower, 4)
    while not listener.snapshot.is_over:
        listener.hear(more=True)
    listener.check()
    assert len(listener.held) == 6


def test_what_a_restart_restores_from_disk_is_added_there_and_loaded_to_the_device() -> None:
    before = TierScene(12, 2, disk=16)
    # a partial block has no key
    before.run(path("published", "tenant"), tokens(1, 2, 3, 4, 5, 6, 7))
    before.cache.restart.save(8)
    before.end_copies()
    scene = TierScene(12, 2, disk=16)
    listener = Listener(scene.cache, Counter(), blocks=1)
    scene.records = before.records
    scene.places[Tier.DISK][:] = before.places[Tier.DISK]
    assert scene.cache.restart.restore(list(scene.records.items()), now=scene.tick()) == 3
    listener.hear(more=False)
    assert list(listener.held.values()) == [Tier.DISK] * 3
    scene.cache.restart.hottest(2)
    scene.end_copies()
    listener.hear(more=True)
    assert listener.held == held_by(scene.cache)
    assert list(listener.held.values()).count(Tier.DEVICE) == 2


def test_more_changes_than_are_kept_are_none_that_are_known() -> None:
    log = ChangeLog(most_keys=3)
    log.removed(bytes(3 * KEY_BYTES))
    assert log.take() == [TreeChange(Kind.REMOVED, None, bytes(3 * KEY_BYTES))]
    for _ in range(5):
        log.removed(bytes(KEY_BYTES))
    assert log.take() is None
    assert log.take() == []


def test_changes_alike_are_one() -> None:
    log = ChangeLog()
    log.removed(b"a" * KEY_BYTES)
    log.removed(b"b" * KEY_BYTES)
    assert log.take() == [TreeChange(Kind.REMOVED, None, b"a" * KEY_BYTES + b"b" * KEY_BYTES)]


def test_nothing_is_noted_while_nobody_listens() -> None:
    scene = Scene(8, 2)
    scene.run(path("tenant"), tokens(1, 2, 3, 4))
    assert scene.cache.tree.changes is None
