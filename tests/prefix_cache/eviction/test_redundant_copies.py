"""Blocks in a lower tier that are also in a higher tier: they are evicted first, and nothing is
lost.
"""

from __future__ import annotations

from prefix_cache.eviction.eviction_policy import RedundantCopies
from prefix_cache.hashing import TokenIds
from prefix_cache.leases.lease import Lease
from prefix_cache.tiers.in_flight import CopyOutcome
from storage.move import Tier
from tests.prefix_cache.support.scene import path, tokens
from tests.prefix_cache.support.tiers_scene import TierScene

A = path("a")
PROMPT = tokens(*range(1, 14))  # three blocks of four tokens, and a last token to compute
OTHER = tokens(*range(50, 66))  # fills the device


def have(scene: TierScene, ids: TokenIds) -> None:
    """Load or compute `ids` on the device, offloading other blocks as needed."""
    lease: Lease | None = None
    for _ in range(6):
        lease = lease or scene.acquire_loading(A, ids, None)
        scene.end_copies()
    assert lease is not None
    assert lease.ready
    scene.release(lease)


def scene_with_redundant_copies() -> tuple[TierScene, RedundantCopies]:
    """Make a scene with PROMPT's three blocks on the device, and copies of them in the host."""
    scene = TierScene(4, host=8)
    scene.run(A, PROMPT)
    have(scene, OTHER)
    have(scene, PROMPT)
    assert scene.cache.tree.match(A, PROMPT).found.device == 3
    assert scene.cache.capacity.lower_tiers()[Tier.HOST].used == 3
    return scene, scene.cache.ref_counts.redundant[Tier.HOST]


def places(redundant: RedundantCopies, wanted: int) -> list[int] | None:
    found = redundant.choose(wanted)
    return None if found is None else found[1].tolist()


def test_the_last_ones_are_given_first_and_all_of_them_once() -> None:
    _, redundant = scene_with_redundant_copies()
    assert places(redundant, 1) == [2]
    assert places(redundant, 2) == [1, 2]  # no copy has been evicted yet
    assert places(redundant, 3) == [0, 1, 2]
    assert places(redundant, 3) is None


def test_forgotten_they_leave_what_lies_higher() -> None:
    scene, _ = scene_with_redundant_copies()
    assert scene.cache.capacity.removals.forget_redundant(Tier.HOST, 2)
    scene.cache.check_invariants()
    assert scene.cache.capacity.lower_tiers()[Tier.HOST].used == 1
    assert scene.cache.tree.match(A, PROMPT).found.device == 3
    scene.check_contents()


def test_a_block_that_lies_here_alone_is_no_double() -> None:
    scene = TierScene(4, host=8)
    scene.run(A, PROMPT)
    have(scene, OTHER)
    assert scene.cache.tree.match(A, PROMPT).found.host == 3
    redundant = scene.cache.ref_counts.redundant[Tier.HOST]
    assert places(redundant, 3) is None
    assert not scene.cache.capacity.removals.forget_redundant(Tier.HOST, 3)
    assert scene.cache.tree.match(A, PROMPT).found.host == 3


def test_a_block_on_its_way_down_is_no_double_until_it_has_arrived() -> None:
    scene = TierScene(4, host=8)
    scene.run(A, PROMPT)
    assert scene.acquire_loading(A, OTHER, None) is None  # the prompt is being offloaded
    scene.take_plan()
    redundant = scene.cache.ref_counts.redundant[Tier.HOST]
    for node in scene.cache.tree.root.children.values():
        redundant.add(node)
    assert places(redundant, 3) is None
    # this lease keeps the prompt's blocks on the device too
    held = scene.acquire_loading(A, PROMPT, None)
    assert held is not None
    scene.complete([(move, CopyOutcome.DONE) for move in list(scene.under_way)])
    assert places(redundant, 3) is not None
