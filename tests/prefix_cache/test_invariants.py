"""The checks of invariants: each detects a state with one error."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from prefix_cache.errors import InvariantBroken
from prefix_cache.leases.lease import Lease
from prefix_cache.tree.node import Node
from tests.prefix_cache.support.scene import Scene, namespace, path, tokens

IDS = np.arange(100, 120, dtype=np.int32)
Damage = Callable[[Scene, Node, Lease], object]


def some_state() -> tuple[Scene, Node, Lease]:
    """Make a tree with a leased leaf, a free leaf and a detached node; return one leaf and one
    lease.
    """
    scene = Scene(32)
    scene.start(path("gone"), IDS)
    scene.cache.flush()
    scene.run(path("pub", "a"), tokens(*IDS[:8], 1, 1, 1, 1))
    lease = scene.start(path("pub", "a"), IDS[:14])
    leaf = next(iter(scene.cache.ref_counts.candidates))
    return scene, leaf, lease


def test_a_right_state_passes() -> None:
    scene, leaf, lease = some_state()
    scene.cache.check_invariants()
    assert not leaf.is_held
    assert lease.node.is_held


def put_back_twice(scene: Scene, leaf: Node, lease: Lease) -> None:
    scene.cache.capacity.allocator.free(leaf.edge.block_ids.copy())


def empty_the_heap(scene: Scene, leaf: Node, lease: Lease) -> None:
    scene.cache.ref_counts.candidates.heap.clear()


def charge_for_nothing(scene: Scene, leaf: Node, lease: Lease) -> None:
    capacity = scene.cache.capacity
    capacity.allocator.free(capacity.take(1, "me"))


DAMAGES: dict[str, Damage] = {
    "a block is lost": lambda scene, leaf, lease: scene.cache.capacity.allocator.allocate(1),
    "a block is in two places": put_back_twice,
    "a lease count": lambda scene, leaf, lease: setattr(lease.node, "leases", 2),
    "a held count": lambda scene, leaf, lease: setattr(lease.node.parent, "held_children", 0),
    "a candidate is missing": lambda s, leaf, lease: s.cache.ref_counts.candidates.discard(leaf),
    "a candidate is held": lambda s, leaf, lease: s.cache.ref_counts.candidates.add(lease.node),
    "a candidate has an outdated key": lambda scene, leaf, lease: setattr(leaf, "last_used", 99.0),
    "a candidate is not in the heap": empty_the_heap,
    "the evictable count": lambda s, leaf, lease: setattr(
        s.cache.ref_counts, "evictable_blocks", 0
    ),
    "the node count": lambda s, leaf, lease: setattr(s.cache.tree, "num_nodes", 9),
    "an empty edge": lambda scene, leaf, lease: leaf.edge.trim(len(leaf.edge)),
    "a child under a wrong key": lambda s, leaf, lease: setattr(leaf, "namespace", namespace("x")),
    "a wrong start": lambda scene, leaf, lease: setattr(leaf, "start", 7),
    "an owner's count": charge_for_nothing,
    "a node of another owner": lambda scene, leaf, lease: setattr(leaf, "owner", "ben"),
    "a node its owner does not have": lambda s, leaf, lease: s.cache.tree.owned["me"].pop(leaf),
    "an eviction by nobody": lambda s, leaf, lease: s.cache.eviction_log.caused.update(me=1),
    "an edge in two namespaces": lambda s, leaf, lease: setattr(lease, "path", path("pub", "b")),
    "a lease that ends elsewhere": lambda s, leaf, lease: setattr(lease, "num_shared", 2),
    "a lease that reads elsewhere": lambda s, leaf, lease: lease.block_ids.__setitem__(0, 31),
    "a released lease": lambda scene, leaf, lease: setattr(lease, "released", True),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_state_breaks_an_invariant(damage: Damage) -> None:
    scene, leaf, lease = some_state()
    damage(scene, leaf, lease)
    with pytest.raises(InvariantBroken):
        scene.cache.check_invariants()
