"""The flat input tensor of a captured graph, compared with the step's rows, token by token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.execution.block_tables import BlockTables
from engine.execution.graphs.bucket import GraphBucket
from engine.execution.graphs.inputs import StepInputs
from engine.sampling.plan import Randomness
from engine.scheduling.row_data import step_of
from engine.scheduling.scheduled_rows import Scheduled, row_of
from engine.sequences.sequence import Sequence
from kernels.attention.decode.split_sizes import split_sizes
from tests.engine.rigs.hand_driven import random_prompt, sequence_of

BLOCK, BATCH_SLOTS, SCRATCH = 4, 9, 500
ROOM = GraphBucket(6, 64, 4)


@dataclass(frozen=True)
class Work:
    """A sequence's numbers of known and computed tokens, and whether it has a pending token."""

    known: int
    computed: int
    is_pending: bool

    def sequence(self, batch_slot: int) -> Sequence:
        blocks = [20 * batch_slot + index for index in range(-(-(self.known + 1) // BLOCK))]
        sequence = sequence_of(random_prompt(self.known, seed=batch_slot), block_ids=blocks)
        sequence.batch_slot, sequence.num_computed = batch_slot, self.computed
        sequence.num_pending = int(self.is_pending)
        return sequence


def decode(known: int, *, is_pending: bool) -> Work:
    return Work(known, known if is_pending else known - 1, is_pending)


decodes = st.builds(decode, st.integers(1, 30), is_pending=st.booleans())
chunks = st.integers(2, 16).flatmap(
    lambda known: st.builds(Work, st.just(known), st.integers(0, known - 2), st.just(False))
)


def filled(scheduled: Scheduled) -> dict[str, list[int]]:
    """Return the fields of the input tensor, by name."""
    tables = BlockTables(num_batch_slots=BATCH_SLOTS, num_blocks=12, scratch_block=SCRATCH)
    flat, sizes = (
        torch.zeros(ROOM.total, dtype=torch.int32),
        split_sizes(torch.zeros(1, 1, 2, 1, 4)),
    )
    inputs = StepInputs(ROOM, flat, tables, BLOCK, sizes)
    tables.update(scheduled.step.rows)
    count = sum(row.samples for row in scheduled.rows)
    keys = np.arange(2 * count, dtype=np.int32).reshape(-1, 2)
    inputs.fill(scheduled.step.rows, Randomness(keys, np.full(count, 0.5, np.float32)))
    return {name: inputs.field(name).tolist() for name in ROOM.sizes()}


@given(st.lists(decodes, max_size=6), st.lists(chunks, max_size=4))
def test_a_step_is_written_token_by_token(alone: list[Work], several: list[Work]) -> None:
    sequences = [work.sequence(batch_slot) for batch_slot, work in enumerate([*alone, *several])]
    if not sequences:
        return
    scheduled = step_of(row_of(one, one.length - one.num_computed) for one in sequences)
    fields = filled(scheduled)
    flat, outputs = 0, []
    for index, (row, sequence) in enumerate(zip(scheduled.rows, sequences, strict=True)):
        if index == len(alone):
            flat = ROOM.num_decodes
        place = index if index < len(alone) else ROOM.num_decodes + index - len(alone)
        assert fields["query_starts"][place] == flat
        assert fields["context_lens"][place] == row.end
        assert fields["table_slots"][place] == sequence.batch_slot
        for position in range(row.start, row.end):
            is_known = position < sequence.num_tokens
            slot = 20 * index * BLOCK + position
            assert fields["positions"][flat] == position
            assert fields["slots"][flat] == slot
            assert fields["token_ids"][flat] == (sequence.tokens[position] if is_known else 0)
            assert fields["pending_slots"][flat] == (
                BATCH_SLOTS if is_known else sequence.batch_slot
            )
            flat += 1
        outputs.append(flat - 1)
    assert fields["outputs"] == outputs + [0] * (ROOM.num_rows - len(outputs))
    batch_slots = [sequence.batch_slot for sequence in sequences]
    assert fields["output_slots"] == batch_slots + [BATCH_SLOTS] * (
        ROOM.num_rows - len(batch_slots)
    )
    assert fields["keys"][: 2 * len(batch_slots)] == list(range(2 * len(batch_slots)))
    for place in range(len(alone), ROOM.num_decodes):  # padding
        assert fields["slots"][place] == SCRATCH * BLOCK
        assert (fields["context_lens"][place], fields["table_slots"][place]) == (0, BATCH_SLOTS)


def test_rows_with_positions_of_their_own_have_them_and_keep_their_slots() -> None:
    """Keep the positions and slots of a sequence after prompt modules: its keys are contiguous, its
    positions have gaps.
    """
    works = [Work(9, 8, False), Work(9, 9, True), Work(12, 4, False)]
    sequences = [work.sequence(batch_slot) for batch_slot, work in enumerate(works)]
    scheduled = step_of(row_of(one, one.length - one.num_computed) for one in sequences)
    plain = filled(scheduled)
    for sequence in sequences[1:]:
        sequence.num_sent = 0
        sequence.positions = np.arange(20, dtype=np.int32) * 3 + 100
    sequences[0].num_sent = 0
    fields = filled(step_of(row_of(one, one.length - one.num_computed) for one in sequences))
    assert fields["slots"] == plain["slots"]
    first = ROOM.num_decodes
    assert fields["positions"][:2] == [8, 127]
    assert fields["positions"][first : first + 8] == [100 + 3 * at for at in range(4, 12)]
