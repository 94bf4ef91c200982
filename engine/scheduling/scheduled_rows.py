"""The rows of a step as the scheduler sees them: sequences and ranges of their tokens.

Elsewhere: what the runner is sent (`row_data.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from engine.drafting.draft import Draft
from engine.sequences.sequence import Sequence
from engine.step import DECODE, SCORE, VERIFY, RowKind, Step, kind_of, samples_each

NOTHING_DRAFTED = Draft((), "own")  # for a VERIFY row that only recomputes tokens


class ScheduledRow(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A row of `num_new` tokens of a sequence from position `start`."""

    sequence: Sequence
    start: int
    num_new: int
    end: int
    kind: RowKind
    samples: bool  # True if the row reaches the last token, so that tokens are sampled
    lease_id: int
    draft: Draft | None = None  # last tokens of a VERIFY row, after a known token

    # The number of leading tokens that a VERIFY row computes again. Also the position of the
    # written recurrent state, or 0 without a recurrent state.
    num_again: int = 0
    state_end: int = 0

    @property
    def num_samples(self) -> int:
        """The number of sampled tokens."""
        if samples_each(self.kind):
            return self.num_new - self.num_again
        return int(self.samples)

    @property
    def is_masked(self) -> bool:
        """True if a constraint limits the sampled tokens."""
        return self.samples and self.sequence.constraint is not None and self.kind is not SCORE

    @property
    def is_over(self) -> bool:
        """True if the sequence has released the row's blocks. The row's result is then dropped."""
        return self.lease_id != self.sequence.lease_id


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A step, and its rows in the same order."""

    rows: tuple[ScheduledRow, ...]
    step: Step


def row_of(sequence: Sequence, num_new: int, start: int | None = None) -> ScheduledRow:
    """Make a row of `num_new` tokens from `start` or from the first uncomputed token."""
    start = sequence.num_computed if start is None else start
    end = start + num_new
    samples = end == sequence.num_tokens + sequence.num_pending
    kind = kind_of(num_new)
    return ScheduledRow(sequence, start, num_new, end, kind, samples, sequence.lease_id)


def verify_row(sequence: Sequence, draft: Draft | None) -> ScheduledRow:
    """Make a row of the sequence's last token and a draft.

    A token is sampled after each of these tokens. Tokens after the sequence's recurrent state are
    computed again at the row's start.
    """
    known, start, state_end = sequence.num_tokens, sequence.num_computed, 0
    states = None if sequence.lease is None else sequence.lease.states
    draft = draft or NOTHING_DRAFTED
    if states is not None:
        most = max(states.most_end(start) - known, 0)
        draft = draft._replace(token_ids=draft.token_ids[:most])
    end = known + len(draft.token_ids)
    if states is not None:
        state_end = end
        if not states.in_place:
            state_end = states.verified_end(start, known, end, draft.chance)
    sequence.tokens[known:end] = draft.token_ids
    again = known - 1 - start
    lease_id = sequence.lease_id
    return ScheduledRow(
        sequence, start, end - start, end, VERIFY, True, lease_id, draft, again, state_end
    )


def score_row(sequence: Sequence, num_new: int) -> ScheduledRow:
    """Make a row of a scored prompt's next `num_new` tokens.

    The prompt's last token gets no row.
    """
    start = sequence.num_computed
    return ScheduledRow(sequence, start, num_new, start + num_new, SCORE, True, sequence.lease_id)


def remaining_tokens(sequence: Sequence) -> int:
    """Return the number of tokens that a sequence has to compute now.

    Return 0 if the sequence's final token is known or pending. Return 0 while the sequence waits
    for the values of several samples.
    """
    pending = sequence.num_pending
    length = sequence.num_tokens + pending
    if pending > 1 or length >= len(sequence.tokens):
        return 0
    return length - sequence.num_computed


def next_kind(sequence: Sequence) -> RowKind | None:
    """Return the kind of row for a sequence's remaining tokens, or None if none remain."""
    to_go = remaining_tokens(sequence)
    if to_go and sequence.num_again:
        return VERIFY
    return kind_of(to_go) if to_go else None


def is_decoding(sequence: Sequence) -> bool:
    """Return whether the next row of a sequence is a decode."""
    kind = next_kind(sequence)
    return kind is DECODE or kind is VERIFY
