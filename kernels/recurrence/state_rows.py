"""The rows of a step and the slots of their states, for layers whose state has a fixed size.

    row starts at zero     its context is its new tokens: its read slot is not read
    row goes on            its context is more: the state at `read_slots` is of the tokens before
    row is padding         its context is 0: no state is read or written, its outputs are 0

A state is read before the row's first token and written after its last. Two slots make two versions
of it: a launch that is repeated reads again what the first one read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class StateRows:
    """Rows R of a step of T tokens, rows of one token first. All tensors on the states' device.

    `row_starts` (R + 1,) int32: where each row's tokens start, as `BatchLayout.query_starts`.
    `context_lens` (R,) int32: tokens of the row after this step, its new ones included.
    `read_slots`, `write_slots` (R,) int32: slots of the state before and after the step. They may
    be the same. A slot that a row writes is read or written by no other row; several rows may read
    one that none writes.
    """

    row_starts: Tensor
    context_lens: Tensor
    read_slots: Tensor
    write_slots: Tensor
    num_decodes: int  # leading rows with exactly one token

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All of them, in order: one argument of a kernel."""
        return self.row_starts, self.context_lens, self.read_slots, self.write_slots

    @property
    def num_rows(self) -> int:
        """Number of rows R."""
        return int(self.context_lens.shape[0])

    @property
    def num_prompts(self) -> int:
        """Number of rows after the decodes."""
        return self.num_rows - self.num_decodes


@dataclass(frozen=True, slots=True)
class StateRow:
    """One row on the host: its tokens and slots; without `read_slot` it starts at zero."""

    tokens: slice
    read_slot: int | None
    write_slot: int


def each_row(rows: StateRows) -> Iterator[StateRow]:
    """Yield the rows that are not padding. Waits for the device."""
    starts, contexts = rows.row_starts.tolist(), rows.context_lens.tolist()
    slots = zip(rows.read_slots.tolist(), rows.write_slots.tolist(), strict=True)
    for row, (read, write) in enumerate(slots):
        tokens = slice(starts[row], starts[row + 1])
        new = tokens.stop - tokens.start
        if contexts[row] and new:
            yield StateRow(tokens, None if contexts[row] == new else read, write)
