"""A mover over the fake runner's blocks: copies take several polls, end in any order, and may fail.

Loads from the host may be promised before they end. Promised loads always succeed: the next
launched step waits for them, and they are reported as done once that step has been collected.

Copies are real, so the mover finds wrong use of slots. A block's numbers are copied when the copy
ends, and until then the target has wrong numbers. A source that changes during the copy, a slot in
two copies, and a record that differs from the written record raise an error at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from prefix_cache.tiers.tier_pools import Tiers
from storage.move import BlockRecord, Completed, Copied, Move, Plan, Tier
from tests.doubles.engine.fake_runner import FakeRunner, KvCorrupt
from tests.doubles.engine.stateful_runner import StatefulRunner

Block = list[int | None]
Place = tuple[Tier, int, bool]  # tier, slot, and whether the slot is for a state


@dataclass(frozen=True)
class Faults:
    """The maximum number of polls until a copy ends, and the frequency of each fault."""

    most_polls: int = 3
    failing: float = 0.0
    losing: float = 0.0  # share of reads from disk whose block is lost
    promising: float = 0.0  # share of polls in which running loads are promised


@dataclass
class Copy:
    move: Move
    seen: Block  # content of the source when the copy began
    spoilt: Block  # wrong content of the target until the copy ends
    record: BlockRecord | None
    polls: int
    is_released: bool = False
    has_arrived: bool = False  # whether the copy was promised, and a launched step needs its data


@dataclass
class FakeMover:
    """A `TierMover`."""

    runner: FakeRunner
    faults: Faults = Faults()
    random: Random = field(default_factory=lambda: Random(0))
    held: set[Tier] = field(default_factory=set)  # copies into these tiers do not end
    host: dict[int, Block] = field(default_factory=dict)
    disk: dict[int, tuple[BlockRecord, Block]] = field(default_factory=dict)
    tiers: Tiers = field(default_factory=Tiers)  # gives the places of states on disk
    host_states: dict[int, Block] = field(default_factory=dict)
    disk_states: dict[int, tuple[BlockRecord, Block]] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)
    ended: Counter[tuple[str, Tier, Tier]] = field(default_factory=Counter)
    ended_states: Counter[tuple[str, Tier, Tier]] = field(default_factory=Counter)
    is_closed: bool = False
    block_seconds: float | None = None  # seconds a block that copies report; None: no report
    under_way: list[Copy] = field(default_factory=list)
    choose_fate: Callable[[Move], str] | None = None  # returns "done", "failed" or "lost"

    def __post_init__(self) -> None:
        self.runner.waits_for_loads = self.arrive
        self.runner.has_waited = self.land

    @property
    def pending(self) -> int:
        return len(self.under_way)

    def start(self, plan: Plan) -> None:
        if self.is_closed:
            raise KvCorrupt("a plan for a mover that is closed")
        self.plans.append(plan)
        for slot in plan.erase:
            self.disk.pop(slot, None)
            if slot >= self.tiers.disk_blocks:
                state = (slot - self.tiers.disk_blocks) // self.tiers.state_blocks
                self.disk_states.pop(state, None)
        for move in plan.moves:
            self._begin(move, plan.records.get(move))

    def poll(self) -> Completed:
        fates: dict[str, list[Move]] = {"done": [], "failed": [], "lost": []}
        for copy in list(self.under_way):
            copy.polls -= 1
        ripe = [
            copy
            for copy in self.under_way
            if copy.polls <= 0 and (copy.has_arrived or copy.move.target_tier not in self.held)
        ]
        self.random.shuffle(ripe)
        for copy in ripe:
            self.under_way.remove(copy)
            fates[self._end(copy)].append(copy.move)
        done = fates["done"]
        return Completed(
            done,
            fates["failed"],
            fates["lost"],
            self._copied(done),
            self._released(),
        )

    def arrive(self) -> None:
        """Carry out the promised copies before a launched step reads their targets."""
        for copy in self.under_way:
            if copy.is_released and not copy.has_arrived:
                self._bring(copy)
                copy.has_arrived = True

    def land(self) -> None:
        """Let the promised copies end, since the step that waited for them was collected."""
        for copy in self.under_way:
            copy.polls = 0 if copy.has_arrived else copy.polls

    def _released(self) -> list[Move]:
        if not self.faults.promising or self.random.random() >= self.faults.promising:
            return []
        up = (Tier.HOST, Tier.DEVICE)
        copies = [
            copy
            for copy in self.under_way
            if (copy.move.source_tier, copy.move.target_tier) == up
            and not (copy.is_released or copy.move.is_state)
        ]
        for copy in copies:
            copy.is_released = True
        return [copy.move for copy in copies]

    def close(self) -> None:
        self.is_closed = True

    def _copied(self, done: list[Move]) -> list[Copied]:
        seconds = self.block_seconds
        if seconds is None:
            return []
        return [Copied(move.source_tier, move.target_tier, 1, seconds) for move in done]

    def moves(self, source: Tier, target: Tier) -> list[Move]:
        """Return all moves started so far from `source` to `target`."""
        return [
            move
            for plan in self.plans
            for move in plan.moves
            if (move.source_tier, move.target_tier) == (source, target)
        ]

    def _begin(self, move: Move, record: BlockRecord | None) -> None:
        if (record is None) == (Tier.DISK in (move.source_tier, move.target_tier)):
            raise KvCorrupt(f"{move} and its record do not fit")
        source, target = _places(move)
        for copy in self.under_way:
            if target in _places(copy.move) or source == _places(copy.move)[1]:
                raise KvCorrupt(f"{move} while {copy.move} is under way")
        seen = list(self._read(source, record))
        spoilt: Block = [None] * len(seen)
        self._write(target, spoilt, record)
        polls = self.random.randint(1, self.faults.most_polls)
        self.under_way.append(Copy(move, seen, spoilt, record, polls))

    def _end(self, copy: Copy) -> str:
        move = copy.move
        fate = "done" if copy.is_released else self._fate(move)
        if fate == "done" and not copy.has_arrived:
            self._bring(copy)
        else:
            self._check(copy)
        how = "promised" if copy.has_arrived else fate
        self.ended[how, move.source_tier, move.target_tier] += 1
        self.ended_states[how, move.source_tier, move.target_tier] += move.is_state
        if fate != "done" and move.target_tier is Tier.DISK:
            del (self.disk_states if move.is_state else self.disk)[move.target]
        return fate

    def _bring(self, copy: Copy) -> None:
        """Complete a copy: write the source's contents to the target."""
        self._check(copy)
        copy.spoilt = list(copy.seen)
        self._write(_places(copy.move)[1], copy.spoilt, copy.record)

    def _check(self, copy: Copy) -> None:
        """Check that the source has not changed, and that nothing else wrote the target."""
        move, (source, target) = copy.move, _places(copy.move)
        if self._read(source, copy.record) != copy.seen:
            raise KvCorrupt(f"the source of {move} has changed")
        there = self._read(target, copy.record)
        want = copy.seen if copy.has_arrived else [None] * len(there)
        is_its_own = there is copy.spoilt or (move.is_state and target[0] is Tier.DEVICE)
        if not is_its_own or there != want:
            raise KvCorrupt(f"somebody else wrote the target of {move}")

    def _fate(self, move: Move) -> str:
        if self.choose_fate is not None:
            return self.choose_fate(move)
        drawn = self.random.random()
        if drawn < self.faults.failing:
            return "failed"
        if move.source_tier is Tier.DISK and drawn < self.faults.failing + self.faults.losing:
            return "lost"
        return "done"

    def _read(self, place: Place, record: BlockRecord | None) -> Block:
        tier, slot, is_state = place
        if tier is Tier.DEVICE:
            return [self._states()[slot]] if is_state else self.runner.blocks[slot]
        if tier is Tier.HOST:
            return (self.host_states if is_state else self.host)[slot]
        written, block = (self.disk_states if is_state else self.disk)[slot]
        if record is None or _bound(written) != _bound(record):
            raise KvCorrupt(f"disk slot {slot} holds another block")
        return block

    def _write(self, place: Place, block: Block, record: BlockRecord | None) -> None:
        tier, slot, is_state = place
        if tier is Tier.DEVICE and is_state:
            [self._states()[slot]] = block
        elif tier is Tier.DEVICE:
            self.runner.blocks[slot] = block
        elif tier is Tier.HOST:
            (self.host_states if is_state else self.host)[slot] = block
        elif record is not None:
            (self.disk_states if is_state else self.disk)[slot] = (record, block)

    def _states(self) -> list[int | None]:
        assert isinstance(self.runner, StatefulRunner)
        return self.runner.states


def _places(move: Move) -> tuple[Place, Place]:
    """Return the source and the target of a move."""
    return (
        (move.source_tier, move.source, move.is_state),
        (move.target_tier, move.target, move.is_state),
    )


def _bound(record: BlockRecord) -> tuple[bytes, ...]:
    """Return the compared fields of a record: all fields except `hits`."""
    return record.key, record.parent_key, record.namespace, record.token_ids, record.owner.encode()
