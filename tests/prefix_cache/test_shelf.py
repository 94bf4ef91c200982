"""Copies in a lower tier of what lies higher as well: they go first, and nothing is lost by it."""

from __future__ import annotations

from prefix_cache.hashing import TokenIds
from prefix_cache.lease import Lease
from prefix_cache.shelf import Shelf
from prefix_cache.transit import Outcome
from storage.move import Tier
from tests.prefix_cache.scene import path, tokens
from tests.prefix_cache.tiers_scene import TierScene

A = path("a")
PROMPT = tokens(*range(1, 14))  # three whole blocks of four, and the token to be computed
OTHER = tokens(*range(50, 66))  # all that fits on the device


def have(scene: TierScene, ids: TokenIds) -> None:
    """Bring `ids` to the device, whatever has to go down for it."""
    lease: Lease | None = None
    for _ in range(6):
        lease = lease or scene.acquire_loading(A, ids, None)
        scene.end_copies()
    assert lease is not None
    assert lease.ready
    scene.release(lease)


def scene_with_doubles() -> tuple[TierScene, Shelf]:
    """PROMPT's three blocks on the device, with copies in the host."""
    scene = TierScene(4, host=8)
    scene.run(A, PROMPT)
    have(scene, OTHER)
    have(scene, PROMPT)
    assert scene.cache.locate(A, PROMPT).device == 3
    assert scene.cache.lower_tiers()[Tier.HOST].used == 3
    return scene, scene.cache._supply.shelves[Tier.HOST]


def places(shelf: Shelf, wanted: int) -> list[int] | None:
    found = shelf.doubles(wanted)
    return None if found is None else found[1].tolist()


def test_the_last_ones_are_given_first_and_all_of_them_once() -> None:
    _, shelf = scene_with_doubles()
    assert places(shelf, 1) == [2]
    assert places(shelf, 2) == [1, 2]  # nobody has forgotten any so far
    assert places(shelf, 3) == [0, 1, 2]
    assert places(shelf, 3) is None


def test_forgotten_they_leave_what_lies_higher() -> None:
    scene, shelf = scene_with_doubles()
    assert scene.cache._supply.losses.forget_doubles(shelf, 2)
    scene.cache.check_invariants()
    assert scene.cache.lower_tiers()[Tier.HOST].used == 1
    assert scene.cache.locate(A, PROMPT).device == 3
    scene.check_contents()


def test_a_block_that_lies_here_alone_is_no_double() -> None:
    scene = TierScene(4, host=8)
    scene.run(A, PROMPT)
    have(scene, OTHER)
    assert scene.cache.locate(A, PROMPT).host == 3
    shelf = scene.cache._supply.shelves[Tier.HOST]
    assert places(shelf, 3) is None
    assert not scene.cache._supply.losses.forget_doubles(shelf, 3)
    assert scene.cache.locate(A, PROMPT).host == 3


def test_a_block_on_its_way_down_is_no_double_until_it_has_arrived() -> None:
    scene = TierScene(4, host=8)
    scene.run(A, PROMPT)
    assert scene.acquire_loading(A, OTHER, None) is None  # the prompt begins to go down
    scene.take_plan()
    shelf = scene.cache._supply.shelves[Tier.HOST]
    for node in scene.cache._tree.root.children.values():
        shelf.note_doubles(node)
    assert places(shelf, 3) is None
    held = scene.acquire_loading(A, PROMPT, None)  # so it stays up as well
    assert held is not None
    scene.settle([(move, Outcome.DONE) for move in list(scene.under_way)])
    assert places(shelf, 3) is not None
