"""The rows of a step as data records. They include the blocks and options that the runner lacks.

A sequence records which of its blocks and options were sent. After a failed launch, `unsent` makes
its next row send them again.

Elsewhere: the choice of rows (`step_builder.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import structs

from engine.sampling.slot_params import is_penalised
from engine.scheduling.scheduled_rows import Scheduled, ScheduledRow
from engine.sequences.sequence import Sequence
from engine.step import DECODE, PREFILL, SCORE, VERIFY, NewRequest, Row, Step
from prefix_cache.leases.lease import Lease
from storage.move import Move, TokenCopy

PENDING_ID = bytes(4)  # placeholder for a token that is known only on the device
PLACES = {DECODE: 0, VERIFY: 1, PREFILL: 2, SCORE: 3}  # order of row kinds within a step


def step_of(
    rows: Iterable[ScheduledRow],
    moves: Iterable[Move] = (),
    copies: Iterable[TokenCopy] = (),
) -> Scheduled:
    """Build a step of these rows, ordered: decodes, VERIFY rows, prefills, scored rows.

    Raises RuntimeError if a row's sequence has no lease or no batch slot.
    """
    rows = tuple(sorted(rows, key=_place))
    return Scheduled(rows, Step(tuple([sent(row) for row in rows]), tuple(moves), tuple(copies)))


def sent(row: ScheduledRow) -> Row:
    """Convert a row to a data record, with the data of its sequence that the runner lacks."""
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
    if lease.states is None:
        return 0, 0
    kind, states = row.kind, lease.states
    decodes = row.samples and (kind is DECODE or (kind is VERIFY and states.in_place))
    return states.at.slot, states.next_out(decodes=decodes)


def overwrites(row: Row, lease: Lease) -> bool:
    """Return whether a row overwrites the recurrent state that it reads."""
    states = lease.states
    return states is not None and not states.in_place and row.state_in == row.state_out


def _borders(row: ScheduledRow, lease: Lease) -> bytes:
    if row.samples and row.kind in (DECODE, VERIFY):
        return b""
    first = _num_blocks(row.sequence, lease) - lease.num_blocks
    return np.array([first + begin for begin, _ in lease.path.spans[1:]], np.int32).tobytes()


def _next_ids(row: ScheduledRow) -> bytes:
    start, end, tokens = row.start, row.end, row.sequence.tokens
    if row.kind is SCORE:
        return tokens[start + 1 : end + 1].tobytes()
    if row.samples:
        return b""
    return tokens[end : end + 1].tobytes()


def unsent(scheduled: Scheduled) -> None:
    """Record that the runner may not have the data that this step's rows sent."""
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
    modules = sequence.modules
    return lease.num_blocks + (0 if modules is None else len(modules.block_ids))


def _new_request(sequence: Sequence, batch_slot: int) -> NewRequest:
    sequence.is_asked = True
    sampling, before = sequence.sampling, sequence.num_before
    prompt_len, num_tokens = before + sequence.prompt_len, before + sequence.num_tokens
    if sampling.grammar is not None:  # the runner gets masks instead of grammars
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
