"""A step under construction, and the conversion of its rows to data for the runner.

    ScheduledRow    a sequence and the range of its tokens, for the scheduler and `settle`
    Row             the same as numbers, with the blocks and options that the runner has not got yet

Making a row notes on its sequence what was sent. After a failed launch, `unsent` makes the next row
send all of it again.

Knows: sequences, leases, rows, what a row takes of the budget. Does not know: whose turn it is
(`scheduler.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np
from msgspec import structs

from engine.drafting.draft import Draft
from engine.sampling.slot_params import is_penalised
from engine.sequences.sequence import Sequence
from engine.step import (
    DECODE,
    PREFILL,
    SCORE,
    VERIFY,
    NewRequest,
    Row,
    RowKind,
    Step,
    kind_of,
    samples_each,
)
from prefix_cache.leases.lease import Lease
from storage.move import Move, TokenCopy

PENDING_ID = bytes(4)  # placeholder of a token that is known only on the device
# Most scored tokens of a step: each has logits and log-probabilities of the whole vocabulary,
# for which memory is reserved.
MOST_SCORED = 256
NOTHING_DRAFTED = Draft((), "own")  # for a VERIFY row that only computes tokens again
PLACES = {DECODE: 0, VERIFY: 1, PREFILL: 2, SCORE: 3}  # order of the kinds of rows in a step


class ScheduledRow(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Row of `num_new` tokens of a sequence, from position `start`, as when it was made."""

    sequence: Sequence
    start: int
    num_new: int
    end: int  # first position after the row's tokens
    kind: RowKind
    samples: bool  # the row reaches the last token, so a token, or several, are sampled (`RowKind`)
    lease_id: int
    draft: Draft | None = None  # the last tokens of a VERIFY row, after a known one
    # Of a VERIFY row: leading tokens that were computed before, and the position of the state that
    # it writes; 0: the sequence has no state.
    num_again: int = 0
    state_end: int = 0

    @property
    def num_samples(self) -> int:
        """Number of sampled tokens."""
        if samples_each(self.kind):
            return self.num_new - self.num_again
        return int(self.samples)

    @property
    def is_masked(self) -> bool:
        """True if a constraint limits the sampled tokens."""
        return self.samples and self.sequence.constraint is not None and self.kind is not SCORE

    @property
    def is_over(self) -> bool:
        """True if the sequence has released the row's blocks: the row's result is dropped."""
        return self.lease_id != self.sequence.lease_id


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A step, and its rows in the same order."""

    rows: tuple[ScheduledRow, ...]
    step: Step


def row_of(sequence: Sequence, num_new: int, start: int | None = None) -> ScheduledRow:
    """Make a row of `num_new` tokens from `start` on, or from the first uncomputed token."""
    start = sequence.num_computed if start is None else start
    end = start + num_new
    samples = end == sequence.num_tokens + sequence.num_pending
    kind = kind_of(num_new)
    return ScheduledRow(sequence, start, num_new, end, kind, samples, sequence.lease_id)


def verify_row(sequence: Sequence, draft: Draft | None) -> ScheduledRow:
    """Make a row of the sequence's last token and a draft, which is written after it in `tokens`.

    A token is sampled after each. Tokens after the sequence's state, if any, come first again.
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
            state_end = states.verified_end(start, known, end, draft.probability)
    sequence.tokens[known:end] = draft.token_ids
    again = known - 1 - start
    lease_id = sequence.lease_id
    return ScheduledRow(
        sequence, start, end - start, end, VERIFY, True, lease_id, draft, again, state_end
    )


def score_row(sequence: Sequence, num_new: int) -> ScheduledRow:
    """Make a row of the next `num_new` tokens of a scored prompt, without its last token."""
    start = sequence.num_computed
    return ScheduledRow(sequence, start, num_new, start + num_new, SCORE, True, sequence.lease_id)


def step_of(
    rows: Iterable[ScheduledRow],
    moves: Iterable[Move] = (),
    copies: Iterable[TokenCopy] = (),
) -> Scheduled:
    """Build the step of these rows: decodes first, then VERIFY rows, and scored rows last.

    Raises RuntimeError where a row's sequence has no lease or no batch slot.
    """
    rows = tuple(sorted(rows, key=_place))
    return Scheduled(rows, Step(tuple([sent(row) for row in rows]), tuple(moves), tuple(copies)))


def sent(row: ScheduledRow) -> Row:
    """Return the row as data, with the parts of its sequence that the runner lacks."""
    sequence, start, end = row.sequence, row.start, row.end
    lease, batch_slot = sequence.lease, sequence.batch_slot
    if lease is None or batch_slot is None:
        lacks = "lease" if lease is None else "batch slot"
        raise RuntimeError(f"{sequence.request_id} is in a step without a {lacks}")
    first, before = sequence.num_sent, sequence.num_before
    is_pending = end > sequence.num_tokens and row.kind is not VERIFY
    is_last_alone = is_pending and row.kind is DECODE
    return Row(
        sequence.lease_id,
        batch_slot,
        row.kind,
        before + start,
        before + end,
        row.samples,
        is_pending,
        PENDING_ID if is_last_alone else sequence.tokens[start:end].tobytes(),
        first,
        b"" if first == _num_blocks(sequence, lease) else _new_blocks(sequence, lease),
        None if sequence.is_asked or not row.samples else _new_request(sequence, batch_slot),
        _next_ids(row),
        *_slots(row, lease),
        adapter=sequence.adapter_slot,
        adapter_start=0 if sequence.adapter is None else sequence.adapter.start,
        embeds=row.samples and sequence.embeds,
        state_end=row.state_end,
        num_again=row.num_again,
        candidates=sequence.candidates if row.samples else b"",
        positions=b"" if sequence.positions is None else sequence.positions[start:end].tobytes(),
        borders=b"" if len(lease.path.spans) == 1 else _borders(row, lease),
    )


def _slots(row: ScheduledRow, lease: Lease) -> tuple[int, int]:
    """Return `Row.state_in` and `state_out`."""
    if lease.states is None:
        return 0, 0
    kind, states = row.kind, lease.states
    decodes = row.samples and (kind is DECODE or (kind is VERIFY and states.in_place))
    return states.at.slot, states.next_out(decodes=decodes)


def overwrites(row: Row, lease: Lease) -> bool:
    """Return whether a row writes over the recurrent state that it reads."""
    states = lease.states
    return states is not None and not states.in_place and row.state_in == row.state_out


def _borders(row: ScheduledRow, lease: Lease) -> bytes:
    """Return `Row.borders`; none of a row that only decodes an answer."""
    if row.samples and row.kind in (DECODE, VERIFY):
        return b""
    first = _num_blocks(row.sequence, lease) - lease.num_blocks
    return np.array([first + begin for begin, _ in lease.path.spans[1:]], np.int32).tobytes()


def _next_ids(row: ScheduledRow) -> bytes:
    """Return `Row.next_ids`."""
    start, end, tokens = row.start, row.end, row.sequence.tokens
    if row.kind is SCORE:
        return tokens[start + 1 : end + 1].tobytes()
    if row.samples:
        return b""
    return tokens[end : end + 1].tobytes()


def unsent(scheduled: Scheduled) -> None:
    """Mark the new data of a step's rows as unsent: the runner may not have it."""
    for row, data in zip(scheduled.rows, scheduled.step.rows, strict=True):
        if data.block_ids:
            row.sequence.num_sent = data.first_block
        if data.new is not None:
            row.sequence.is_asked = False


def _place(row: ScheduledRow) -> int:
    return PLACES[row.kind]


def _new_blocks(sequence: Sequence, lease: Lease) -> bytes:
    first, sequence.num_sent = sequence.num_sent, _num_blocks(sequence, lease)
    if sequence.modules is None:
        return lease.block_ids[first : lease.num_blocks].tobytes()
    return np.concatenate([sequence.modules.block_ids, lease.blocks])[first:].tobytes()


def _num_blocks(sequence: Sequence, lease: Lease) -> int:
    """Count the blocks of a sequence's table, those of its modules included."""
    modules = sequence.modules
    return lease.num_blocks + (0 if modules is None else len(modules.block_ids))


def _new_request(sequence: Sequence, batch_slot: int) -> NewRequest:
    sequence.is_asked = True
    sampling, before = sequence.sampling, sequence.num_before
    prompt_len, num_tokens = before + sequence.prompt_len, before + sequence.num_tokens
    if sampling.grammar is not None:  # the runner has its masks
        sampling = structs.replace(sampling, grammar=None)
    prompt_ids = _prompt_ids(sequence) if sampling.repetition_penalty != 1.0 else b""
    output_ids = sequence.output_ids.tobytes() if is_penalised(sampling) else b""
    is_constrained = sequence.constraint is not None
    return NewRequest(
        batch_slot, sampling, prompt_len, num_tokens, prompt_ids, output_ids, is_constrained
    )


def _prompt_ids(sequence: Sequence) -> bytes:
    own = sequence.tokens[: sequence.prompt_len].tobytes()
    return own if sequence.modules is None else sequence.modules.whole_ids().tobytes() + own


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of one step: tokens computed, sequences running, seconds."""

    max_batch_tokens: int
    max_running: int
    # Longest step with decodes that have no target (`prefill_budget.py`). None: no bound.
    max_step_s: float | None = None
    stages: int = 1  # pipeline stages, each with a step of other sequences at a time
    target_itl_s: float | None = None  # target of gaps between tokens (`gap_targets.py`)

    def __post_init__(self) -> None:
        if self.max_step_s is not None and self.max_step_s <= 0:
            raise ValueError("max_step_s must be more than 0 seconds")
        if self.target_itl_s is not None and self.target_itl_s <= 0:
            raise ValueError("target_itl_s must be more than 0 seconds")
        if not 0 < self.max_running <= self.max_batch_tokens:
            raise ValueError(
                "max_running must be in 1..max_batch_tokens: each takes a token a step"
            )


class StepBuilder:
    """Rows so far, and the token budget of further rows (`budget`)."""

    def __init__(self, budget: int) -> None:
        self.rows: list[ScheduledRow] = []
        self.moves: list[Move] = []
        self.copies: list[TokenCopy] = []  # after the moves
        self.started: list[Sequence] = []  # sequences whose blocks the moves may fill
        self._budget = budget
        self._may_score = MOST_SCORED

    @property
    def budget(self) -> int:
        """Token budget of further rows; 0 once the step has its most scored tokens."""
        return self._budget if self._may_score else 0

    @budget.setter
    def budget(self, tokens: int) -> None:
        self._budget = tokens

    def add(self, sequence: Sequence) -> ScheduledRow:
        """Add a row of the sequence's uncomputed tokens, up to the budget."""
        if sequence.num_again:
            return self.verify(sequence, None)
        num_new = min(remaining_tokens(sequence), self.budget)
        if sequence.is_to_score:
            row = self._scored(sequence, num_new)
        else:
            row = row_of(sequence, _up_to_state(sequence, num_new))
        self.rows.append(row)
        self._count(row, row.num_new)
        return row

    def verify(self, sequence: Sequence, draft: Draft | None) -> ScheduledRow:
        """Add a row of the tokens to compute again, the sequence's last token and a draft."""
        row = verify_row(sequence, draft)
        self.rows.append(row)
        self._count(row, row.num_new)
        return row

    def stop_at_states(self) -> list[ScheduledRow]:
        """Shorten rows to states that became wanted after they were added; return the rests.

        A sequence that was looked up later in the same step parts from them there.
        """
        rests = list[ScheduledRow]()
        for at, row in enumerate(self.rows):
            fits = row.num_new if row.kind is SCORE else _up_to_state(row.sequence, row.num_new)
            if fits < row.num_new and row.start == row.sequence.num_computed:
                self.rows[at] = row_of(row.sequence, fits)
                rests.append(row_of(row.sequence, row.num_new - fits, row.start + fits))
                self._count(row, fits - row.num_new)
        return rests

    def cut(self, tokens: int) -> list[ScheduledRow]:
        """Shorten rows of prompts to `tokens` in all, the last rows first; return the rests.

        Each row keeps a token at least, since its sequence may have been started in this step.
        """
        rests = list[ScheduledRow]()
        prompts = [at for at, row in enumerate(self.rows) if row.kind is PREFILL]
        over = sum(self.rows[at].num_new for at in prompts) - tokens
        for at in reversed(prompts):
            row = self.rows[at]
            rest = min(over, row.num_new - 1)
            if rest <= 0:
                continue
            self.rows[at] = row_of(row.sequence, row.num_new - rest, row.start)
            rests.append(row_of(row.sequence, rest, row.end - rest))
            self._count(row, -rest)
            over -= rest
        return rests

    def drop(self, sequence: Sequence) -> None:
        """Remove the sequence's row, if it has one."""
        for row in [row for row in self.rows if row.sequence is sequence]:
            self.rows.remove(row)
            self._count(row, -row.num_new)

    def _scored(self, sequence: Sequence, num_new: int) -> ScheduledRow:
        before_last = sequence.prompt_len - 1 - sequence.num_computed
        return score_row(sequence, min(num_new, before_last, self._may_score))

    def _count(self, row: ScheduledRow, tokens: int) -> None:
        self._budget -= tokens
        if row.kind is SCORE:
            self._may_score -= tokens

    def step(self) -> Scheduled:
        """Build the step, decodes before chunks, and mark its sequences' data as sent."""
        return step_of(self.rows, self.moves, self.copies)


def _up_to_state(sequence: Sequence, num_new: int) -> int:
    """Return how many of the next tokens may be in a row, which ends where a state is kept."""
    states = None if sequence.lease is None else sequence.lease.states
    if states is None:
        return num_new
    start, is_cut = sequence.num_computed, num_new < remaining_tokens(sequence)
    return states.row_end(start, start + num_new, is_cut=is_cut) - start


def remaining_tokens(sequence: Sequence) -> int:
    """Return the number of tokens that a sequence has to compute now.

    None once its last token is known or pending, nor while it waits for the values of several.
    """
    pending = sequence.num_pending
    length = sequence.num_tokens + pending
    if pending > 1 or length >= len(sequence.tokens):
        return 0
    return length - sequence.num_computed


def next_kind(sequence: Sequence) -> RowKind | None:
    """Return the kind of a row of all uncomputed tokens of a sequence; None without any."""
    to_go = remaining_tokens(sequence)
    if to_go and sequence.num_again:
        return VERIFY
    return kind_of(to_go) if to_go else None


def is_decoding(sequence: Sequence) -> bool:
    """Return whether the next row of a sequence is one of the decodes."""
    kind = next_kind(sequence)
    return kind is DECODE or kind is VERIFY
