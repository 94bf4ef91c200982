"""A single failure harms only its own request: the Nth call fails, for N = 1..K."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from prefix_cache.tiers.tier_pools import Tiers
from prefix_cache.tree.edge import BlockIds
from prefix_cache.tree.node import Partial
from storage.move import Move, Tier
from tests.engine.rigs.rig import Rig, generate

MANY = 10_000


class Room:
    """The cache's device room, which refuses call number `refused` as if other sequences held all
    blocks.

    A call is refused only while other sequences run, since a single sequence always gets blocks
    if it fits.
    """

    def __init__(self, rig: Rig, refused: int) -> None:
        capacity = rig.cache.capacity
        self._make_room, self._take_now = capacity.make_room, capacity.take_now
        self._running = rig.scheduler.running
        self._refused = refused  # number of the call to refuse
        self.asked = 0

    def make_room(self, count: int, owner: str, beside: Partial | None) -> bool:
        return not self._is_refused(others=1) and self._make_room(count, owner, beside)

    def take_now(self, count: int, owner: str) -> BlockIds | None:
        return None if self._is_refused(others=2) else self._take_now(count, owner)

    def _is_refused(self, others: int) -> bool:
        self.asked += len(self._running) >= others
        return self.asked == self._refused and len(self._running) >= others


def trace(fail_copy: int = MANY, fail_step: int = MANY, rig: Rig | None = None) -> tuple[Rig, int]:
    """Run prompts that are offloaded, loaded and extended, while copy `fail_copy` or step
    `fail_step` fails.

    Return the rig and the number of copies.
    """
    rig = rig or small_rig()
    rig.mover.choose_fate = nth(fail_copy)
    requests = [
        generate(f"r{number}", [*range(number % 3, 24), number], max_tokens=4)
        for number in range(12)
    ]
    for request in requests:
        rig.submit(request)
        for _ in range(3):
            if len(rig.runner.steps) == fail_step and not rig.runner.raising:
                rig.runner.raising = [MemoryError("no room")]
                fail_step = MANY
            rig.step()
    rig.run()
    for request in requests:
        rig.expect_output(request)
    copies = sum(rig.mover.ended.values())
    rig.expect_nothing_left()
    return rig, copies


def small_rig() -> Rig:
    """Make a rig with room for two prompts on the device, and for few in the lower tiers."""
    return Rig(
        num_blocks=14,
        max_batch_tokens=24,
        max_running=3,
        overlap_scheduling=True,
        tiers=Tiers(host_blocks=8, disk_blocks=24),
    )


def nth(number: int) -> Callable[[Move], str]:
    """Return a function that lets only copy `number` fail."""
    seen = 0

    def fate(move: Move) -> str:
        nonlocal seen
        seen += 1
        return "failed" if seen == number else "done"

    return fate


def test_without_a_failure_blocks_go_there_and_back() -> None:
    """Run without a failure (positive control): copies of all kinds take place, and so could
    fail.
    """
    rig, copies = trace()
    assert 30 < copies < 40
    directions = {(source, target) for _, source, target in rig.mover.ended}
    assert {(Tier.DEVICE, Tier.HOST), (Tier.HOST, Tier.DEVICE)} <= directions
    assert len(rig.runner.steps) > 30


def test_one_allocation_finds_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse each request for a device block in turn, both at a sequence's start and when it
    grows.
    """
    for number in itertools.count(1):
        rig = small_rig()
        room = Room(rig, number)
        monkeypatch.setattr(rig.cache.capacity, "make_room", room.make_room)
        monkeypatch.setattr(rig.cache.capacity, "take_now", room.take_now)
        trace(rig=rig)
        if room.asked < number:
            break
    assert number > 20


@pytest.mark.parametrize("first", range(1, 41, 10))
def test_one_copy_fails(first: int) -> None:
    for number in range(first, first + 10):
        rig, _ = trace(fail_copy=number)
        assert sum(n for (fate, *_), n in rig.mover.ended.items() if fate != "done") <= 1


@pytest.mark.parametrize("number", range(0, 30, 3))
def test_one_step_finds_no_room_on_the_device(number: int) -> None:
    rig, _ = trace(fail_step=number)
    assert rig.runner.num_raised == 1
