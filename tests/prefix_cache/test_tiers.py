"""Blocks are offloaded and loaded one step at a time. Only complete copies replace them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from prefix_cache.errors import LeaseError, UnknownMove
from prefix_cache.eviction.eviction_policy import LeastRecentlyUsed, SortKey
from prefix_cache.leases.lease import Lease
from prefix_cache.tiers.eviction_log import Reason
from prefix_cache.tiers.in_flight import CopyOutcome
from prefix_cache.tree.match import Whereabouts
from prefix_cache.tree.node import Node
from storage.move import Move, Tier
from tests.prefix_cache.support.scene import path, tokens
from tests.prefix_cache.support.tiers_scene import TierScene

A = path("a")
PROMPT = tokens(*range(1, 10))  # two blocks of four tokens, and a last token to compute
OTHER = tokens(*range(21, 30))


def settle_all(scene: TierScene, outcome: CopyOutcome = CopyOutcome.DONE) -> int:
    scene.take_plan()
    moves = list(scene.under_way)
    scene.complete([(move, outcome) for move in moves])
    scene.cache.check_invariants()
    return len(moves)


def down(scene: TierScene) -> None:
    """Run PROMPT, then push its blocks off a device of three blocks."""
    down_from(scene, 3)


def down_from(scene: TierScene, blocks: int) -> None:
    """Run PROMPT, then push its blocks off a device of `blocks` blocks."""
    scene.run(A, PROMPT)
    blocker = None
    for _ in range(4):
        blocker = blocker or scene.acquire_loading(A, tokens(*range(50, 50 + 4 * blocks)), None)
        settle_all(scene)
    assert blocker is not None
    scene.release(blocker)


def loading(scene: TierScene) -> Lease:
    lease = scene.acquire_loading(A, PROMPT, None)
    assert lease is not None
    return lease


def test_a_prefix_goes_to_the_host_and_comes_back() -> None:
    scene = TierScene(3, host=4)
    down(scene)
    assert scene.cache.tree.match(A, PROMPT).found == Whereabouts(
        device=0, coming=0, host=2, disk=0
    )
    lease = loading(scene)
    assert not lease.ready
    assert lease.cached_tokens == 8
    assert scene.cache.tree.match(A, PROMPT).found.coming == 2
    settle_all(scene)
    assert lease.ready
    assert scene.read(lease, 8) == scene.kv(A, PROMPT)[:8]
    assert scene.cache.eviction_log.loaded[Tier.HOST] == 2
    assert scene.cache.eviction_log.written[Tier.HOST] == 2
    assert scene.cache.eviction_log.by_reason(Tier.DEVICE)[Reason.COPIED] == 2


def test_nothing_is_forgotten_before_its_copy_is_whole() -> None:
    scene = TierScene(3, host=4)
    scene.run(A, PROMPT)
    assert scene.acquire_loading(A, OTHER, None) is None
    assert scene.cache.tree.match(A, PROMPT).found.device == 2
    scene.take_plan()
    assert scene.cache.tree.match(A, PROMPT).found.device == 2
    scene.complete([(move, CopyOutcome.DONE) for move in scene.under_way])
    assert scene.cache.tree.match(A, PROMPT).found.host > 0
    assert scene.acquire_loading(A, OTHER, None) is not None


def test_a_block_that_is_used_while_it_is_copied_stays_on_the_device() -> None:
    scene = TierScene(3, host=4)
    scene.run(A, PROMPT)
    assert scene.acquire_loading(A, OTHER, None) is None
    scene.take_plan()
    lease = loading(scene)
    assert lease.ready
    scene.complete([(move, CopyOutcome.DONE) for move in scene.under_way])
    assert scene.cache.tree.match(A, PROMPT).found.device == 2
    scene.cache.check_invariants()


@pytest.mark.parametrize(("loads", "cached"), [(0, 0), (1, 4), (2, 8), (None, 8)])
def test_no_more_is_loaded_than_asked_for(loads: int | None, cached: int) -> None:
    scene = TierScene(3, host=4)
    down(scene)
    lease = scene.acquire_loading(A, PROMPT, loads)
    assert lease is not None
    assert lease.cached_tokens == cached
    assert lease.ready == (cached == 0)


def test_discard_forgets_blocks_computed_in_place_of_lower_copies() -> None:
    """Forget recomputed blocks with copies in a lower tier if their numbers were not finite."""
    scene = TierScene(3, host=4)
    down(scene)
    lease = scene.acquire_loading(A, PROMPT, 0)
    assert lease is not None
    scene.compute(lease, PROMPT, 0, 9)
    scene.commit(lease, PROMPT)
    assert scene.cache.tree.match(A, PROMPT).found.device == 2
    scene.discard(lease)
    assert scene.matches(A, PROMPT) == 0
    scene.cache.check_invariants()
    assert scene.cache.capacity.pool().free == 3


def test_blocks_below_the_device_or_on_their_way_are_not_pinned() -> None:
    """Pin no block that is below the device, or is still being copied.

    A pin guarantees that its blocks can be read from the device now.
    """
    scene = TierScene(3, host=4)
    down(scene)

    def pin(blocks: int) -> Lease | None:
        return scene.cache.pin(A, PROMPT[: 4 * blocks], owner="me", now=scene.tick())

    assert pin(2) is None
    first = scene.acquire_loading(A, PROMPT[:5], 1)
    assert first is not None
    assert pin(1) is None
    settle_all(scene)
    assert pin(2) is None, "its second block is in the host alone"
    pinned = pin(1)
    assert pinned is not None
    assert scene.read(pinned, 4) == scene.kv(A, PROMPT)[:4]
    scene.cache.check_invariants()


def test_a_lease_that_is_not_ready_commits_nothing() -> None:
    scene = TierScene(3, host=4)
    down(scene)
    lease = loading(scene)
    with pytest.raises(LeaseError, match="not on the device"):
        scene.commit(lease, PROMPT)
    settle_all(scene)
    scene.commit(lease, PROMPT)


def test_two_leases_wait_for_one_load() -> None:
    scene = TierScene(6, host=4)
    scene.run(A, PROMPT)
    blocker = None
    while blocker is None:
        blocker = scene.acquire_loading(A, tokens(*range(50, 74)), None)
        settle_all(scene)
    scene.release(blocker)
    first, second = loading(scene), loading(scene)
    assert len(scene.take_plan().moves) == 2
    moves = list(scene.under_way)
    scene.complete([(moves[1], CopyOutcome.DONE)])
    assert [first.ready, second.ready] == [False, False]
    scene.complete([(moves[0], CopyOutcome.DONE)])
    assert first.ready
    assert second.ready


def test_a_lease_is_ready_when_its_load_is_promised_whole() -> None:
    scene = TierScene(4, host=4)
    down_from(scene, 4)
    lease = loading(scene)
    moves = scene.take_plan().moves
    scene.cache.moves.release_early(moves[:1])
    assert not lease.ready, "one of two blocks"
    scene.cache.moves.release_early(moves)
    scene.cache.check_invariants()
    assert lease.ready
    assert scene.cache.tree.match(A, PROMPT).found == Whereabouts(
        device=0, coming=2, host=0, disk=0
    )
    later = loading(scene)
    assert later.ready, "it counts on the same promise"
    scene.complete([(move, CopyOutcome.DONE) for move in moves])
    scene.cache.check_invariants()
    assert lease.ready
    assert scene.read(lease, 8) == scene.kv(A, PROMPT)[:8]
    assert scene.cache.tree.match(A, PROMPT).found == Whereabouts(
        device=2, coming=0, host=0, disk=0
    )


@dataclass(frozen=True)
class TwoLoads:
    """Loads of PROMPT: the first block for `first`, the second also for `second`."""

    scene: TierScene
    first: Lease
    second: Lease
    before: tuple[Move, ...]
    behind: tuple[Move, ...]

    def are_ready(self) -> tuple[bool, bool]:
        self.scene.cache.check_invariants()
        return self.first.ready, self.second.ready

    def land(self, *moves: Move) -> None:
        self.scene.complete([(move, CopyOutcome.DONE) for move in moves])


@pytest.fixture
def two() -> TwoLoads:
    scene = TierScene(6, host=6)
    down_from(scene, 6)
    first = scene.acquire_loading(A, PROMPT[:5], None)
    assert first is not None
    before = scene.take_plan().moves
    second = loading(scene)
    behind = scene.take_plan().moves
    assert (len(before), len(behind)) == (1, 1)
    return TwoLoads(scene, first, second, before, behind)


def test_a_promised_load_behind_one_that_is_not_is_waited_for(two: TwoLoads) -> None:
    two.scene.cache.moves.release_early(two.behind)
    assert two.are_ready() == (False, False)
    two.scene.cache.moves.release_early(two.before)
    assert two.are_ready() == (True, True)
    two.land(*two.behind, *two.before)
    assert two.are_ready() == (True, True)
    assert two.scene.read(two.second, 8) == two.scene.kv(A, PROMPT)[:8]


def test_a_part_of_a_load_that_is_promised_twice_is_not_all_of_it() -> None:
    scene = TierScene(6, host=8)
    scene.run(A, np.concatenate([PROMPT[:4], OTHER[:5]]))  # splits PROMPT into two nodes
    down_from(scene, 6)
    lease = loading(scene)
    first, second = scene.take_plan().moves
    for _ in range(2):
        scene.cache.moves.release_early([second])
    assert not lease.ready
    scene.cache.moves.release_early([first])
    scene.cache.check_invariants()
    assert lease.ready


def test_a_promised_load_is_ready_when_the_one_before_has_ended(two: TwoLoads) -> None:
    two.scene.cache.moves.release_early(two.behind)
    two.land(*two.before)
    assert two.are_ready() == (True, True)
    two.land(*two.behind)
    assert two.are_ready() == (True, True)


def test_a_promise_of_copies_down_or_of_none_changes_nothing() -> None:
    scene = TierScene(3, host=4)
    scene.run(A, PROMPT)
    assert scene.acquire_loading(A, OTHER, None) is None
    moves = scene.take_plan().moves
    assert moves
    scene.cache.moves.release_early(moves)
    scene.cache.moves.release_early(())
    scene.cache.check_invariants()
    assert scene.acquire_loading(A, OTHER, None) is None
    scene.complete([(move, CopyOutcome.FAILED) for move in moves])
    scene.cache.check_invariants()


def test_a_failed_load_fails_the_lease_and_can_be_repeated() -> None:
    scene = TierScene(3, host=4)
    down(scene)
    lease = loading(scene)
    settle_all(scene, CopyOutcome.FAILED)
    assert lease.failed
    assert not lease.ready
    scene.release(lease)
    assert scene.cache.tree.match(A, PROMPT).found.host == 2
    again = loading(scene)
    settle_all(scene)
    assert again.ready


def test_a_block_behind_one_that_is_missing_does_not_land() -> None:
    scene = TierScene(3, host=4)
    down(scene)
    lease = loading(scene)
    scene.take_plan()
    first, second = scene.under_way
    scene.complete([(second, CopyOutcome.DONE), (first, CopyOutcome.FAILED)])
    scene.cache.check_invariants()
    assert lease.failed
    assert scene.cache.tree.match(A, PROMPT).found == Whereabouts(
        device=0, coming=0, host=2, disk=0
    )


def test_a_lost_block_leaves_the_tree_with_all_behind_it() -> None:
    scene = TierScene(3, host=4)
    down(scene)
    lease = loading(scene)
    scene.take_plan()
    first, second = scene.under_way
    scene.complete([(first, CopyOutcome.DONE), (second, CopyOutcome.LOST)])
    scene.cache.check_invariants()
    assert lease.failed
    scene.release(lease)
    assert scene.cache.tree.match(A, PROMPT).found.total == 1
    assert scene.cache.eviction_log.by_reason(Tier.HOST)[Reason.LOST] == 1


def test_a_lease_released_before_its_load_ends_leaves_nothing_behind() -> None:
    scene = TierScene(3, host=4)
    down(scene)
    scene.release(loading(scene))
    scene.cache.check_invariants()
    assert len(scene.cache.in_flight) == 2
    settle_all(scene)
    assert len(scene.cache.in_flight) == 0
    assert scene.cache.tree.match(A, PROMPT).found.device == 2
    scene.cache.flush()
    assert scene.cache.capacity.pool().free == 3


def test_a_flush_while_blocks_are_copied_frees_them_when_that_has_ended() -> None:
    scene = TierScene(3, host=4)
    scene.run(A, PROMPT)
    assert scene.acquire_loading(A, OTHER, None) is None
    assert scene.cache.flush() == 2
    assert scene.cache.capacity.pool().free == 1
    settle_all(scene)
    assert scene.cache.capacity.pool().free == 3


def test_a_copy_that_cannot_be_written_is_tried_once() -> None:
    scene = TierScene(3, host=4)
    scene.run(A, PROMPT)
    assert scene.acquire_loading(A, OTHER, None) is None
    settle_all(scene, CopyOutcome.FAILED)
    assert scene.cache.tree.match(A, PROMPT).found.device == 2
    assert scene.acquire_loading(A, OTHER, None) is not None
    assert scene.cache.eviction_log.by_reason(Tier.DEVICE) == {Reason.UNKEPT: 2}


def test_disk_is_for_what_was_asked_for_again() -> None:
    scene = TierScene(3, disk=4)
    scene.run(A, PROMPT)
    assert scene.acquire_loading(A, OTHER, None) is not None
    assert scene.cache.eviction_log.by_reason(Tier.DEVICE) == {Reason.UNEARNED: 2}
    scene = TierScene(3, disk=4)
    scene.run(A, PROMPT)
    scene.run(A, PROMPT)
    assert scene.acquire_loading(A, OTHER, None) is None
    assert settle_all(scene) == 2
    assert scene.cache.tree.match(A, PROMPT).found.disk == 2


@pytest.mark.parametrize("most", [1, 2])
def test_a_disk_that_stalls_holds_up_as_many_writes_as_are_allowed_and_no_more(most: int) -> None:
    scene = TierScene(3, disk=8, max_disk_writes=most)
    for _ in range(2):
        scene.run(A, PROMPT)
    assert scene.acquire_loading(A, OTHER, None) is None
    writes = scene.take_plan().moves
    assert [move.target_tier for move in writes] == [Tier.DISK] * most
    for n in range(100, 160, 10):
        assert scene.acquire_loading(A, tokens(*range(n, n + 9)), None) is None
        assert scene.take_plan().moves == ()
    assert list(scene.under_way) == list(writes)
    settle_all(scene)
    assert scene.cache.tree.match(A, PROMPT).found.disk == most


class CountingPolicy(LeastRecentlyUsed):
    """A policy that counts how often leaves are sorted."""

    def __init__(self) -> None:
        self.placed = 0

    def sort_key(self, node: Node) -> SortKey:
        self.placed += 1
        return super().sort_key(node)


def with_a_disk_that_stalls(writes: int) -> TierScene:
    """Fill a device with six prompts of two blocks, and a host with three prompts that were asked
    twice.
    """
    scene = TierScene(13, host=6, disk=8, max_disk_writes=writes)
    earned = [tokens(*range(n, n + 9)) for n in (100, 200, 300)]
    for prompt in [*earned, *earned]:
        scene.run(A, prompt)
    others = [tokens(*range(n, n + 9)) for n in range(1_000, 1_600, 100)]
    for prompt in others[:3]:
        scene.run(A, prompt)
    assert scene.acquire_loading(A, tokens(*range(2_000, 2_037)), None) is None
    settle_all(scene)
    for prompt in others:
        scene.run(A, prompt)
    assert scene.cache.capacity.lower_tiers()[Tier.HOST].used == 6
    return scene


def test_room_that_is_coming_below_is_waited_for_by_one_and_not_by_all() -> None:
    """Let only the first leaf wait for the slots that two stalled writes will vacate.

    The other leaves are offloaded at once: the host's least valuable blocks are dropped for them.
    """
    scene = with_a_disk_that_stalls(writes=2)
    asked = tokens(*range(2_000, 2_037))  # needs ten of the device's thirteen blocks
    assert scene.acquire_loading(A, asked, None) is None
    scene.take_plan()
    for _ in range(10):
        down = [move for move in scene.under_way if move.target_tier is Tier.HOST]
        scene.complete([(move, CopyOutcome.DONE) for move in down])
        if lease := scene.acquire_loading(A, asked, None):
            break
        scene.take_plan()
    assert lease is not None
    stalled = [move for move in scene.under_way if move.target_tier is Tier.DISK]
    assert 0 < len(stalled) <= 2
    assert scene.cache.eviction_log.by_reason(Tier.HOST)[Reason.BUSY] > 0
    scene.release(lease)
    settle_all(scene)
    scene.cache.check_invariants()


@pytest.mark.parametrize("leaves", [20, 100])
def test_making_room_beside_a_stalled_disk_looks_at_few_leaves(leaves: int) -> None:
    """Make room beside a stalled disk without looking at all leaves, or sorting them again."""
    policy = CountingPolicy()
    blocks = 2 * leaves + 7  # enough for all of these prompts
    scene = TierScene(blocks, host=6, disk=8, max_disk_writes=2, ahead=leaves, policy=policy)
    for prompt in [tokens(*range(n, n + 9)) for n in (100, 200, 300)] * 2:
        scene.run(A, prompt)
    others = [tokens(*range(n, n + 9)) for n in range(1_000, 990 + 15 * leaves, 10)]
    for prompt in others[:leaves]:
        scene.run(A, prompt)
    assert settle_all(scene) == 6  # the first three prompts are offloaded to the host
    for prompt in others[leaves:]:
        scene.run(A, prompt)
    looked = []
    for _ in range(20):
        scene.complete(
            [(m, CopyOutcome.DONE) for m in scene.under_way if m.target_tier is Tier.HOST]
        )
        before = policy.placed
        scene.take_plan()
        looked.append(policy.placed - before)
    assert any(move.target_tier is Tier.DISK for move in scene.under_way)
    assert scene.cache.capacity.pool().free >= leaves
    assert max(looked[5:]) < 10


def test_an_extension_does_not_wait() -> None:
    scene = TierScene(3, host=4)
    scene.run(A, PROMPT)
    lease = scene.must_acquire(A, tokens(71))
    assert scene.cache.extend(lease, 12, now=scene.tick())
    assert len(scene.cache.in_flight) == 0
    assert scene.cache.eviction_log.by_reason(Tier.DEVICE) == {Reason.URGENT: 2}


def test_a_plan_makes_room_ahead() -> None:
    scene = TierScene(3, host=4, ahead=3)
    scene.run(A, PROMPT)
    assert settle_all(scene) == 2
    assert scene.cache.capacity.pool().free == 3
    assert scene.cache.tree.match(A, PROMPT).found.host == 2


def test_a_computed_block_takes_the_place_of_one_that_lies_lower() -> None:
    scene = TierScene(3, host=4)
    down(scene)
    lease = scene.acquire_loading(A, PROMPT, 0)
    assert lease is not None
    scene.compute(lease, PROMPT, 0, 9)
    scene.commit(lease, PROMPT)
    scene.cache.check_invariants()
    assert scene.cache.tree.match(A, PROMPT).found.device == 2
    assert len(scene.cache.in_flight) == 0


def test_only_moves_under_way_are_settled_and_each_once() -> None:
    scene = TierScene(3, host=4)
    scene.run(A, PROMPT)
    assert scene.acquire_loading(A, OTHER, None) is None
    (move, *_) = scene.take_plan().moves
    with pytest.raises(UnknownMove):
        scene.cache.moves.complete(done=[Move(Tier.HOST, 0, Tier.DEVICE, 0)])
    scene.complete([(move, CopyOutcome.DONE)])
    with pytest.raises(UnknownMove):
        scene.cache.moves.complete(done=[move])


def test_a_record_says_what_its_block_is() -> None:
    scene = TierScene(3, disk=4)
    for _ in range(3):
        scene.run(A, PROMPT)
    assert scene.acquire_loading(A, OTHER, None) is None
    plan = scene.take_plan()
    records = sorted((plan.records[move] for move in plan.moves), key=lambda r: r.token_ids)
    keys = scene.keys(A, PROMPT)
    assert [r.key for r in records] == [keys[:16], keys[16:]]
    assert [r.parent_key for r in records] == [bytes(16), keys[:16]]
    assert [r.token_ids for r in records] == [PROMPT[:4].tobytes(), PROMPT[4:8].tobytes()]
    assert {(r.namespace, r.owner, r.hits) for r in records} == {(A.at(0), "me", 2)}


def test_every_eviction_says_whose_for_whom_and_why() -> None:
    scene = TierScene(3)
    scene.run(A, PROMPT, "anna")
    scene.run(A, OTHER, "ben")
    ((eviction, blocks),) = scene.cache.eviction_log.evicted.items()
    assert eviction == (Tier.DEVICE, Reason.NO_ROOM, "anna", "ben")
    assert blocks == 2
    assert scene.cache.eviction_log.by_reason(Tier.DEVICE) == {Reason.NO_ROOM: 2}
