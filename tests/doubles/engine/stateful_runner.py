"""A `FakeRunner` whose model also has a recurrent layer, with each version of a state in a slot.

The state after a token is the same number as the KV of that token, made from all tokens so far.
Each row reads the state from one slot and writes it to another, and the next token is made from the
state. So the next row finds a slot that was reused too early, an overwritten version or a
checkpoint of other tokens, or the output changes.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any

from engine.sequences.sequence import Sequence
from engine.step import Row, Sampled, Step
from storage.move import FIRST_SLOT
from tests.doubles.engine.fake_runner import FakeRunner, KvCorrupt, next_kv, next_token


@dataclass
class StatefulRunner(FakeRunner):
    """A `Runner` over a dict of blocks and a list of states."""

    num_states: int = 8
    in_place: bool = False  # True if a slot is a ring, which holds the states at its last positions
    states: list[Any] = field(default_factory=list)
    num_in_place: int = 0  # number of rows that wrote the slot that they had read
    # states by batch slot and position
    passed: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.states = [0, *[None] * (self.num_states - 1)]

    def _computed(self, step: Step) -> tuple[Step, list[Sequence]]:
        self._check_slots(step.rows)
        return super()._computed(step)

    def _write(self, row: Row) -> None:
        super()._write(row)
        if self.in_place:
            self._write_ring(row)
            return
        state = self.states[row.state_in]
        if state != (self._read(row, row.start - 1) if row.start else 0):
            raise KvCorrupt(f"slot {row.state_in} does not hold the state at {row.start}")
        for position in range(row.start, row.end):
            state = next_kv(state or 0, self._token(row, position))
            self.passed[row.batch_slot, position + 1] = state
            if position + 1 == (row.state_end or row.end):
                self.states[row.state_out] = state

    def _write_ring(self, row: Row) -> None:
        """Add the row's positions to a ring; drop positions whose block is overwritten."""
        size, newest = self.block_size, (row.end - 1) // self.block_size
        ring = dict(self.states[row.state_in] or {}) if row.start else {0: 0}
        state = ring.get(row.start)
        if state is None or state != (self._read(row, row.start - 1) if row.start else 0):
            raise KvCorrupt(f"slot {row.state_in} does not hold the state at {row.start}")
        for position in range(row.start, row.end):
            state = next_kv(state, self._token(row, position))
            ring[position + 1] = self.passed[row.batch_slot, position + 1] = state
        self.states[row.state_out] = {
            at: state for at, state in ring.items() if newest <= at // size + 1
        }

    def _next(self, row: Row, owner: Sequence | None) -> Sampled:
        sampled = super()._next(row, owner)
        if sampled.token_id is None or row.kind.value == "score":
            return sampled
        kv = [self._read(row, position) for position in range(row.end - 1)]
        if self.states[row.state_out] is None:
            raise KvCorrupt(f"slot {row.state_out} was never written")
        state = self.passed[row.batch_slot, row.end]
        return sampled._replace(token_id=next_token([*kv, state], self.vocab_size))

    def _check_slots(self, rows: Items[Row]) -> None:
        """Check that no row reads or writes a slot that another row of the step writes."""
        written = [row.state_out for row in rows]
        self.num_in_place += sum(row.state_in == row.state_out for row in rows)
        read = [row.state_in for row in rows]
        others = {
            one.state_in
            for one in rows
            if one.state_in != one.state_out or (one.num_new > 1 and not self.in_place)
        }
        if len(set(written)) < len(written) or set(written) & others:
            raise KvCorrupt(f"states are read from {read} and written to {written}")
        if min(written) < FIRST_SLOT or max(*written, *read) >= self.num_states:
            raise KvCorrupt(f"states are written to {written} of {self.num_states}")
