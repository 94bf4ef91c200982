"""Blocks for which there is no room are treated as each line of the table in `offloader` says."""

from __future__ import annotations

import pytest

from prefix_cache.hashing import TokenIds
from prefix_cache.tiers.eviction_log import Reason
from prefix_cache.tiers.in_flight import CopyOutcome
from storage.move import Tier
from tests.prefix_cache.support.scene import path, tokens
from tests.prefix_cache.support.tiers_scene import TierScene

A = path("a")
PROMPT = tokens(*range(1, 10))  # two blocks of four tokens, and a last token to compute
OTHER = tokens(*range(21, 30))
THIRD = tokens(*range(41, 50))


def places(scene: TierScene, ids: TokenIds = PROMPT) -> tuple[int, int, int]:
    """Count a prompt's blocks by their fastest tier: device, host, disk."""
    found = scene.cache.tree.match(A, ids).found
    return found.device, found.host, found.disk


def push_out(scene: TierScene, ids: TokenIds = OTHER) -> bool:
    """Request as many blocks as the device has; return whether there was room at once."""
    lease = scene.acquire_loading(A, ids, None)
    if lease is not None:
        scene.release(lease)
    return lease is not None


def lost(scene: TierScene) -> dict[Reason, int]:
    return dict(scene.cache.eviction_log.by_reason(Tier.DEVICE))


def test_without_a_tier_below_blocks_are_dropped_at_once() -> None:
    scene = TierScene(3)
    scene.run(A, PROMPT)
    assert push_out(scene)
    assert scene.cache.moves.take_plan().moves == ()
    assert lost(scene) == {Reason.NO_ROOM: 2}


def test_where_the_host_has_room_blocks_go_down_and_are_here_until_the_copy_is_whole() -> None:
    scene = TierScene(3, host=4)
    scene.run(A, PROMPT)
    assert not push_out(scene)
    moves = scene.take_plan().moves
    assert [move.target_tier for move in moves] == [Tier.HOST] * 2
    assert places(scene)[0] == 2
    scene.end_copies()
    assert places(scene) == (0, 2, 0)
    assert lost(scene) == {Reason.COPIED: 2}
    assert push_out(scene)
    scene.check_contents()


def test_blocks_that_lie_lower_as_well_are_forgotten_at_once() -> None:
    scene = TierScene(3, disk=4)
    for _ in range(2):
        scene.run(A, PROMPT)
    push_out(scene)
    scene.end_copies()
    lease = scene.acquire_loading(A, PROMPT, None)  # loaded again, but also kept on the disk
    assert lease is not None
    scene.end_copies()
    scene.release(lease)
    assert places(scene) == (2, 0, 0)
    assert scene.cache.capacity.lower_tiers()[Tier.DISK].used == 2
    assert push_out(scene)
    assert scene.take_plan().moves == ()
    assert places(scene) == (0, 0, 2)


@pytest.mark.parametrize("times", [1, 2])
def test_the_disk_gets_what_was_asked_for_again(times: int) -> None:
    scene = TierScene(3, disk=4)
    for _ in range(times):
        scene.run(A, PROMPT)
    was_room = push_out(scene)
    scene.end_copies()
    assert places(scene) == ((0, 0, 2) if times == 2 else (0, 0, 0))
    assert was_room is (times == 1)
    assert lost(scene) == {Reason.COPIED: 2} if times == 2 else {Reason.UNEARNED: 2}


def test_a_full_host_gives_up_what_was_used_before() -> None:
    scene = TierScene(3, host=2)
    for prompt in (PROMPT, OTHER, THIRD):
        while not push_out(scene, prompt):
            scene.end_copies()
        scene.run(A, prompt)
        scene.end_copies()
    assert places(scene, PROMPT) == (0, 0, 0)
    assert places(scene, OTHER) == (0, 2, 0)
    assert places(scene, THIRD)[0] == 2
    scene.cache.check_invariants()
    scene.check_contents()


def test_a_running_sequence_does_not_wait_for_copies() -> None:
    scene = TierScene(5, host=8)
    lease = scene.must_acquire(A, OTHER)
    scene.run(A, tokens(1, 2, 3, 4, 5))
    assert places(scene, tokens(1, 2, 3, 4)) == (1, 0, 0)
    assert scene.cache.extend(lease, 20, now=scene.tick())
    assert scene.take_plan().moves == ()
    assert lost(scene) == {Reason.URGENT: 1}


def test_room_is_made_ahead_where_that_is_asked_for() -> None:
    def begun(ahead: int) -> int:
        scene = TierScene(4, host=8, ahead=ahead)
        scene.run(A, tokens(*range(1, 18))[:16])
        assert scene.cache.capacity.pool().free == 0
        return len(scene.take_plan().moves)

    assert (begun(0), begun(2)) == (0, 2)


def test_a_copy_down_that_failed_leaves_its_blocks_and_they_are_dropped_next() -> None:
    scene = TierScene(3, host=4)
    scene.run(A, PROMPT)
    assert not push_out(scene)
    scene.take_plan()
    scene.complete([(move, CopyOutcome.FAILED) for move in list(scene.under_way)])
    assert places(scene) == (2, 0, 0)
    assert push_out(scene)
    assert lost(scene) == {Reason.UNKEPT: 2}
    scene.cache.check_invariants()
