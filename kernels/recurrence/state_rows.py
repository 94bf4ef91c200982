"""The rows of a step and the slots of their states, for layers whose state has a fixed size.

    row starts at zero     context = new tokens; the row's read slot is not read
    row continues          context > new tokens; `read_slots` has the state after earlier tokens
    row is padding         context = 0; no state is read or written, and outputs are 0

A state is read before the row's first token and written after its last token. If the read slot and
the write slot differ, the old state is kept, and a repeated launch reads the same state again.

Successive decodes of one sequence are a run. The run's tokens are computed in order, starting from
one state, and the state after its first `kept` tokens is written. Drafts are verified in runs, so
that the written state includes no token that may be rejected.

    row    | 5 | 6 . . | 9 |      a decode; a run of three tokens; a decode
    runs   | 1 | 3 -1 -2 | 1 |
    kept   | 1 | 2       | 1 |    the state after the run's second token is written

`StateRows` contains these numbers as tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class StateRows:
    """The R rows of a step with T tokens. Rows of one token are first.

    All tensors are on the states' device.

    `row_starts` (R + 1,) int32 are the indices of each row's first token, like
    `BatchLayout.query_starts`. `context_lens` (R,) int32 are the numbers of tokens of each row's
    sequence after this step, with the new tokens. `read_slots` and `write_slots` (R,) int32 are the
    slots of the states before and after the step. They are equal for all rows of a run. A row may
    read and write the same slot, except in runs of several tokens. No other row reads or writes a
    slot that a row writes, except rows of the same run. Several rows may read a slot that no row
    writes. `runs` (R,) int32 are for decodes: for a run's first row its number of tokens, and for a
    later row the number of rows since the first, negated. `kept` (R,) int32 are for a run's
    first row: the number of tokens after which the state is written.
    """

    row_starts: Tensor
    context_lens: Tensor
    read_slots: Tensor
    write_slots: Tensor
    runs: Tensor
    kept: Tensor
    num_decodes: int  # number of leading rows that have exactly one token

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """All tensors of the rows in order, which are one argument of a kernel."""
        return (
            self.row_starts,
            self.context_lens,
            self.read_slots,
            self.write_slots,
            self.runs,
            self.kept,
        )

    @property
    def num_rows(self) -> int:
        """The number of rows R."""
        return int(self.context_lens.shape[0])

    @property
    def num_prompts(self) -> int:
        """The number of rows after the decodes."""
        return self.num_rows - self.num_decodes


@dataclass(frozen=True, slots=True)
class StateRow:
    """A row or run on the host.

    If `read_slot` is None, its state starts at zero. The state after `kept` tokens is written.
    `by_token` means that tokens are computed one by one.
    """

    tokens: slice
    read_slot: int | None
    write_slot: int
    kept: int
    by_token: bool

    @property
    def parts(self) -> Iterator[slice]:
        """Yield slices of tokens that are computed together: one slice per token, or one of all."""
        if not self.by_token:
            yield self.tokens
            return
        for at in range(self.tokens.start, self.tokens.stop):
            yield slice(at, at + 1)


def each_row(rows: StateRows) -> Iterator[StateRow]:
    """Yield all rows except padding rows. A run is one row here. Waits for the device."""
    starts, contexts = rows.row_starts.tolist(), rows.context_lens.tolist()
    slots = zip(rows.read_slots.tolist(), rows.write_slots.tolist(), strict=True)
    runs, kept = rows.runs.tolist(), rows.kept.tolist()
    for row, (read, write) in enumerate(slots):
        begin, new = starts[row], starts[row + 1] - starts[row]
        if not (contexts[row] and new):
            continue
        read_slot = None if contexts[row] == new else read
        if row >= rows.num_decodes:
            yield StateRow(slice(begin, begin + new), read_slot, write, new, by_token=False)
        elif runs[row] > 0:
            tokens = slice(begin, begin + runs[row])
            yield StateRow(tokens, read_slot, write, kept[row], by_token=True)
