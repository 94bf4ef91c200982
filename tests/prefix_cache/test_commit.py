"""Only whole computed blocks enter the tree, and of two equal blocks only the first."""

from __future__ import annotations

import numpy as np
import pytest

from prefix_cache.errors import LeaseError
from prefix_cache.hashing import TokenIds
from storage.move import Tier
from tests.prefix_cache.support.scene import Scene, path, tokens
from tests.prefix_cache.support.tiers_scene import TierScene

A, B = path("a"), path("b")
IDS = np.arange(100, 113, dtype=np.int32)  # three blocks of four tokens, and a token


@pytest.mark.parametrize(("computed", "found"), [(0, 0), (3, 0), (4, 4), (11, 8), (13, 12)])
def test_whole_computed_blocks_enter_and_no_others(computed: int, found: int) -> None:
    scene = Scene(16)
    lease = scene.must_acquire(A, IDS)
    scene.compute(lease, IDS, 0, computed)
    scene.commit(lease, IDS, computed)
    assert scene.matches(A, IDS) == found
    assert scene.matches(B, IDS) == 0
    scene.cache.check_invariants()


def test_a_lease_that_shares_nothing_enters_nothing() -> None:
    scene = Scene(16)
    lease = scene.must_acquire(A, IDS, shares=False)
    scene.compute(lease, IDS, 0, len(IDS))
    scene.commit(lease, IDS)
    assert scene.matches(A, IDS) == 0
    scene.release(lease)
    scene.run(A, IDS)
    assert scene.matches(A, IDS) == 12, "the control"


def test_of_two_that_compute_the_same_the_first_ones_blocks_are_the_trees() -> None:
    scene = Scene(16)
    first, second = scene.must_acquire(A, IDS), scene.must_acquire(A, IDS)
    for lease in (first, second):
        scene.compute(lease, IDS, 0, len(IDS))
        scene.commit(lease, IDS)
    assert scene.read(second, len(IDS)) == scene.kv(A, IDS), "it keeps its own copies"
    assert scene.cache.capacity.pool().leased == 8
    scene.release(second)
    assert scene.cache.capacity.pool().used == 4, "its copies went with it"
    later = scene.must_acquire(A, IDS)
    assert later.blocks[:3].tolist() == first.blocks[:3].tolist()
    scene.cache.check_invariants()


def test_a_generation_grows_one_node() -> None:
    scene = Scene(32)
    ids = np.arange(60, dtype=np.int32)
    lease = scene.must_acquire(A, ids)
    for end in range(4, 60, 4):
        scene.compute(lease, ids, end - 4, end)
        scene.commit(lease, ids, end)
    assert scene.cache.tree.num_nodes == 1
    assert scene.matches(A, ids) == 56


def test_what_others_continue_is_not_grown() -> None:
    scene = Scene(32)
    lease = scene.start(A, IDS[:4])
    other = scene.start(A, tokens(*IDS[:4], 1, 1, 1, 1, 1))
    assert scene.cache.extend(lease, 9, now=scene.tick())
    longer = tokens(*IDS[:4], 2, 2, 2, 2, 2)
    scene.compute(lease, longer, 4, 9)
    scene.commit(lease, longer)
    assert (scene.cache.tree.num_nodes, scene.cache.tree.depth) == (3, 2)
    assert scene.matches(A, longer) == 8
    assert scene.read(other, 8) == scene.kv(A, tokens(*IDS[:4], 1, 1, 1, 1))
    scene.cache.check_invariants()


def test_a_run_through_two_namespaces_is_two_nodes_and_only_the_first_is_shared() -> None:
    scene = Scene(16)
    scene.run(path("published", "a"), IDS)
    assert (scene.cache.tree.num_nodes, scene.cache.tree.depth) == (2, 2)
    assert scene.matches(path("published", "b"), IDS) == 4
    assert scene.matches(path("published", "a"), IDS) == 12


def lowered() -> TierScene:
    """Make a device of three blocks; the two blocks of a prompt are offloaded to the host."""
    scene = TierScene(3, host=4)
    scene.run(A, IDS[:9])
    assert scene.acquire_loading(A, tokens(*range(9)), None) is None
    scene.end_copies()
    assert scene.cache.tree.match(A, IDS[:9]).found.host == 2
    return scene


def test_blocks_that_lie_lower_are_on_the_device_again_when_they_were_computed() -> None:
    scene = lowered()
    lease = scene.acquire_loading(A, IDS[:9], 0)  # loads nothing
    assert lease is not None
    assert lease.cached_tokens == 0
    scene.compute(lease, IDS[:9], 0, 9)
    scene.commit(lease, IDS[:9])
    assert scene.cache.tree.match(A, IDS[:9]).found.device == 2
    scene.release(lease)
    scene.check_contents()
    scene.cache.check_invariants()
    assert scene.cache.capacity.lower_tiers()[Tier.HOST].used == 2, "the copies there stay"


@pytest.mark.parametrize(
    ("ids", "computed"), [(IDS, 14), (np.append(IDS, np.arange(8, dtype=np.int32)), 20)]
)
def test_more_than_there_is_or_was_leased_is_refused(ids: TokenIds, computed: int) -> None:
    scene = Scene(16)
    lease = scene.must_acquire(A, IDS)
    with pytest.raises(LeaseError):
        scene.commit(lease, ids, computed)
    assert scene.matches(A, IDS) == 0
    scene.compute(lease, IDS, 0, 13)
    scene.commit(lease, IDS)
    assert scene.matches(A, IDS) == 12
