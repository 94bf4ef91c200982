"""The rows of a step in the scheduler's form: a sequence and a range of its tokens.

Elsewhere: the data sent to the runner (`row_data.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from engine.drafting.draft import Draft
from engine.sequences.sequence import Sequence
from engine.step import DECODE, SCORE, VERIFY, RowKind, Step, kind_of, samples_each

NOTHING_DRAFTED = Draft((), "own")  # draft of a VERIFY row that only computes tokens again


class ScheduledRow(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A row of `num_new` tokens of a sequence from position `start`."""

    sequence: Sequence
    start: int
    num_new: int
    end: int
    kind: RowKind
    samples: bool  # True if the row includes the last token, so that tokens are sampled
    lease_id: int
    draft: Draft | None = None  # the draft of a VERIFY row, which follows its known tokens

    # `num_again` is the number of leading tokens that a VERIFY row computes again. `state_end` is
    # the position of the recurrent state that it writes, or 0.
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
        """True if the sequence's constraint limits the sampled tokens."""
        return self.samples and self.sequence.constraint is not None and self.kind is not SCORE

    @property
    def is_over(self) -> bool:
        """True if the sequence no longer holds the row's blocks. The result is then dropped."""
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
    """Make a row that verifies a draft after the sequence's last token.

    A token is sampled after the last token, and after each token of the draft. The row begins with
    the tokens after the sequence's recurrent state, which are computed again.
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
    """Make a row that scores the next `num_new` tokens of a prompt.

    The prompt's last token is never in such a row.
    """
    start = sequence.num_computed
    return ScheduledRow(sequence, start, num_new, start + num_new, SCORE, True, sequence.lease_id)


def remaining_tokens(sequence: Sequence) -> int:
    """Return the number of tokens that can be computed for a sequence now.

    It is 0 if the sequence's final token is known or pending, or while the sequence waits for the
    values of several samples.
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
