"""A pruning in pieces ends with all of its nodes gone, whatever requests do between the pieces."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from prefix_cache.hashing import TokenIds
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import NamespacePath
from prefix_cache.tiers.pruning import Pruning
from prefix_cache.tree.tally import Tally
from storage.move import Tier
from tests.prefix_cache.support.scene import Scene, path, tokens

GROUP, ANN, BEN = path("group"), path("ann"), path("ben")
IDS = np.arange(100, 140, dtype=np.int32)


def owned(scene: Scene, owner: str) -> int:
    return len(scene.cache.tree.owned.get(owner, ()))


def fill(scene: Scene, where: NamespacePath, count: int, owner: str) -> None:
    for number in range(count):
        scene.run(where, np.concatenate([IDS[:8], tokens(*[number] * 5)]), owner=owner)


def test_a_step_removes_one_node_at_most() -> None:
    scene = Scene(200)
    fill(scene, ANN, 40, "ann")
    before = scene.cache.tree.num_nodes
    assert before > 40
    pruning = scene.cache.pruning(None, "ann")
    pruning.advance(30)
    scene.cache.check_invariants()
    assert before - 30 <= scene.cache.tree.num_nodes < before
    assert not pruning.is_over
    pruning.finish()
    assert (scene.cache.tree.num_nodes, owned(scene, "ann")) == (0, 0)
    scene.cache.check_invariants()


def test_leaves_go_first_so_every_block_left_is_reachable() -> None:
    scene = Scene(64)
    scene.run(ANN, IDS[:8], owner="ann")
    for length in (16, 24, 40):
        scene.run(ANN, IDS[:length], owner="ann")
    pruning = scene.cache.pruning(None, "ann")
    while not pruning.is_over:
        pool = scene.cache.capacity.pool()
        found, blocks = scene.matches(ANN, IDS), pool.total - pool.free
        assert found == 4 * blocks
        pruning.advance(1)
    assert pruning.blocks == 10


def test_both_parts_of_a_node_that_is_split_meanwhile_go() -> None:
    scene = Scene(64)
    scene.run(ANN, IDS[:32], owner="ann")
    pruning = scene.cache.pruning(None, "ann")
    pruning.advance(2)  # has chosen the node
    scene.run(ANN, np.concatenate([IDS[:12], tokens(*[1] * 8)]), owner="ben")
    assert scene.cache.tree.num_nodes == 3, "the control: split, and a branch added below"
    assert pruning.finish() > 0
    assert scene.matches(ANN, IDS) == 0
    scene.cache.check_invariants()


def test_a_prefix_that_is_split_while_it_is_forgotten_goes_as_a_whole() -> None:
    scene = Scene(64)
    scene.run(ANN, IDS[:4], owner="ann")  # the prefix builds on a node that stays
    lease = scene.must_acquire(ANN, IDS[:32], "ann")
    scene.compute(lease, IDS[:32], lease.cached_tokens, 32)
    scene.commit(lease, IDS[:32])
    scene.cache.retain(lease, IDS[:32], 1e6, now=scene.tick())
    scene.release(lease)
    scene.run(ANN, np.concatenate([IDS[:4], tokens(*[7] * 8)]), owner="ann")
    [marked] = scene.cache.retained.listed("ann", now=scene.now)
    pruning = scene.cache.retained.forget("ann", marked.prefix_id, now=scene.now)
    assert pruning is not None
    pruning.advance(2)
    scene.run(ANN, np.concatenate([IDS[:12], tokens(*[1] * 8)]), owner="ann")
    pruning.finish()
    assert scene.matches(ANN, IDS) == 4, "the first block has another branch"
    scene.cache.check_invariants()


def test_copies_are_tallied_once() -> None:
    scene = Scene(64)
    fill(scene, ANN, 6, "ann")
    tally = Tally()
    pruning = scene.cache.pruning(None, "ann", tally)
    assert pruning.finish() == tally.blocks[Tier.DEVICE] == 8


class _Between:
    """Requests of two owners, in shared and own namespaces, between a pruning's pieces."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.scene = Scene(48)
        self.running: list[tuple[Lease, TokenIds]] = []

    def act(self, owners: tuple[str, ...]) -> None:
        if self.running and self.random.random() < 0.5:
            lease, ids = self.running.pop(self.random.randrange(len(self.running)))
            self.scene.compute(lease, ids, lease.cached_tokens, len(ids))
            self.scene.commit(lease, ids)
            self.scene.release(lease)
            return
        length = self.random.randint(4, 40)
        ids = np.array([self.random.getrandbits(1) for _ in range(length)], np.int32)
        where = self.random.choice((GROUP, ANN, BEN))
        new = self.scene.acquire(where, ids, self.random.choice(owners))
        if new is not None:
            self.running.append((new, ids))

    def prune(self, pruning: Pruning, owners: tuple[str, ...]) -> None:
        while not pruning.is_over:
            self.act(owners)
            pruning.advance(self.random.randint(1, 4))
            self.scene.cache.check_invariants()


@pytest.mark.parametrize("seed", range(12))
def test_requests_between_pieces_do_no_harm(seed: int) -> None:
    between = _Between(seed)
    scene, seen = between.scene, 0
    for _ in range(12):
        for _ in range(20):
            between.act(("ann", "ben"))
        seen += owned(scene, "ann")
        between.prune(scene.cache.pruning(None, "ann"), ("ben",))
        assert not owned(scene, "ann")
        between.prune(scene.cache.pruning([GROUP.at(0)], "ben"), ("ann",))
        assert not [one for one in scene.cache.tree.nodes_in(GROUP.at(0)) if one.owner == "ben"]
    assert seen
    for lease, _ in between.running:
        scene.release(lease)
    scene.cache.flush()
    pool = scene.cache.capacity.pool()
    assert (pool.free, pool.leased) == (pool.total, 0)
