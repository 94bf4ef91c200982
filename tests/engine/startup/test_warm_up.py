"""The start with a disk that has blocks: the tree is rebuilt, and the hottest blocks are loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from engine.startup.warm_up import WARM_AT_ONCE, WARM_PART, WARM_S, warm_up
from prefix_cache.tiers.tier_pools import Tiers
from storage.disk.stats import DiskProcessStats, DiskState
from storage.move import BlockRecord, Tier
from tests.engine.rigs.rig import Rig, generate

BLOCKS = 100  # number of blocks of the prompt on disk
PROMPT = [(3 * i * i) % 61 + 1 for i in range(4 * BLOCKS)]


class FoundDisk:
    """A disk that reports the blocks it found."""

    def __init__(self, records: Iterable[tuple[int, BlockRecord]]) -> None:
        self.generation = 0
        self.state = DiskState.UP
        self.stats = DiskProcessStats()
        self.records = list(records)
        self.encrypts = False

    def is_forgetting(self, owner: str) -> bool:
        raise NotImplementedError(owner)

    def scan(self) -> Iterable[tuple[int, BlockRecord]]:
        return self.records

    def erase_unlisted(self) -> None:
        raise NotImplementedError

    def forget_owner(self, owner: str) -> None:
        raise NotImplementedError(owner)

    def note_flushes(self, flushes: Sequence[str]) -> None:
        raise NotImplementedError(flushes)

    def done_flushes(self) -> Sequence[str]:
        return ()


def started(num_blocks: int = 160, held: bool = False) -> tuple[Rig, list[int]]:
    """Make a rig before its first step, on the disk of an earlier rig.

    Also return the number of pending moves at each pause.
    """
    tiers = Tiers(disk_blocks=256)
    before = Rig(num_blocks=160, tiers=tiers)
    for name in ("first", "second"):
        before.submit(generate(name, PROMPT, max_tokens=1))
        before.run()
    before.core.spill(60.0)
    rig = Rig(
        num_blocks=num_blocks,
        tiers=tiers,
        disk=FoundDisk((slot, record) for slot, (record, _) in before.mover.disk.items()),
    )
    rig.mover.disk = dict(before.mover.disk)
    rig.mover.held = {Tier.DEVICE} if held else set()
    under_way: list[int] = []

    def pause(seconds: float) -> None:
        under_way.append(rig.mover.pending)
        rig.clock.now += seconds

    rig.core.components = replace(rig.core.components, pause=pause)
    return rig, under_way


def ask(rig: Rig) -> int:
    """Send the prompt and check the answer; return the number of tokens that were cached on the
    device.
    """
    again = generate("again", PROMPT, max_tokens=4)
    rig.submit(again)
    rig.run()
    rig.expect_output(again)
    return rig.finished("again").reused.tiers.device


def test_half_of_the_device_is_filled_from_the_front() -> None:
    rig, _ = started()
    assert warm_up(rig.core.components) == BLOCKS
    assert rig.cache.capacity.pool().used == 160 // WARM_PART
    assert not rig.mover.pending
    assert ask(rig) == 4 * 80
    rig.expect_nothing_left()


def test_no_more_is_loaded_than_there_is() -> None:
    rig, _ = started(num_blocks=400)
    assert warm_up(rig.core.components) == BLOCKS
    assert rig.cache.capacity.pool().used == BLOCKS
    assert ask(rig) == 4 * BLOCKS - 1  # the last token is always computed


def test_few_are_under_way_at_once() -> None:
    rig, under_way = started()
    warm_up(rig.core.components)
    assert max(under_way) == WARM_AT_ONCE < 80


def test_a_disk_that_does_not_answer_delays_the_start_for_so_long_and_nobody_after() -> None:
    rig, under_way = started(held=True)
    began = rig.clock.now
    assert warm_up(rig.core.components) == BLOCKS
    assert WARM_S <= rig.clock.now - began < 1.1 * WARM_S
    assert rig.mover.pending == max(under_way) == WARM_AT_ONCE
    other = generate("other", range(30), max_tokens=4)
    rig.submit(other)
    rig.run()
    rig.expect_output(other)
    rig.mover.held = set()
    ask(rig)
    rig.expect_nothing_left()


def test_loads_that_fail_are_not_tried_until_the_time_is_up() -> None:
    rig, _ = started()
    rig.mover.choose_fate = lambda _: "failed"
    assert warm_up(rig.core.components) == BLOCKS
    assert sum(rig.mover.ended.values()) <= 160 // WARM_PART
    assert rig.cache.capacity.pool().used == 0
    rig.mover.choose_fate = lambda _: "done"
    ask(rig)
    rig.expect_nothing_left()


def test_with_an_empty_disk_nothing_is_waited_for() -> None:
    """Start with an empty disk (positive control of the other tests' waits): there is no wait."""
    rig = Rig(tiers=Tiers(disk_blocks=64), disk=FoundDisk([]))
    began = rig.clock.now
    assert warm_up(rig.core.components) == 0
    assert rig.clock.now == began
    assert not rig.mover.plans
