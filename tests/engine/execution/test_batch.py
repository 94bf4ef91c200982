"""The flat tensors of a step, compared with its rows, token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.execution.batch import Batch, build_batch
from engine.execution.block_tables import BlockTables
from engine.scheduling.row_data import step_of
from engine.scheduling.scheduled_rows import ScheduledRow, row_of
from tests.engine.rigs.hand_driven import random_prompt, sequence_of

CPU = torch.device("cpu")
BLOCK = 4


def row(
    known: int, start: int, num_new: int, first_block: int = 0, batch_slot: int = 0
) -> ScheduledRow:
    """Return a row of a sequence of `known` tokens, whose block ids rise by 3."""
    blocks = [first_block + 3 * index for index in range(-(-known // BLOCK) + 1)]
    sequence = sequence_of(random_prompt(known, seed=known), block_ids=blocks)
    sequence.batch_slot = batch_slot
    return row_of(sequence, num_new, start)


def batch_of(rows: list[ScheduledRow]) -> Batch:
    tables, data = (
        BlockTables(num_batch_slots=5, num_blocks=12, scratch_block=77),
        step_of(rows).step,
    )
    tables.update(data.rows)
    return build_batch(data.rows, tables, BLOCK, CPU)


def check(batch: Batch, rows: list[ScheduledRow]) -> None:
    """Compare the flat tensors with loops over rows and tokens."""
    layout, flat = batch.layout, 0
    outputs = []
    for index, one in enumerate(rows):
        assert one.sequence.lease is not None
        blocks = one.sequence.lease.blocks
        assert layout.query_starts[index] == flat
        assert layout.context_lens[index] == one.end
        assert layout.block_tables[index, : len(blocks)].tolist() == blocks.tolist()
        for position in range(one.start, one.end):
            assert batch.token_ids[flat] == one.sequence.tokens[position]
            assert layout.positions[flat] == position
            assert layout.slots[flat] == blocks[position // BLOCK] * BLOCK + position % BLOCK
            flat += 1
        outputs += [flat - 1] if one.num_samples else []
    assert layout.query_starts[-1] == flat == len(batch.token_ids)
    assert batch.outputs.tolist() == outputs


@st.composite
def rows_of_a_step(draw: st.DrawFn) -> list[ScheduledRow]:
    rows = []
    for index in range(draw(st.integers(1, 5))):
        known = draw(st.integers(1, 30))
        start = draw(st.integers(0, known - 1))
        num_new = draw(st.integers(1, known - start))
        rows.append(row(known, start, num_new, 100 * index, batch_slot=index))
    return sorted(rows, key=lambda one: one.num_new > 1)


@given(rows_of_a_step())
def test_a_step_is_laid_flat_token_by_token(rows: list[ScheduledRow]) -> None:
    batch = batch_of(rows)
    check(batch, rows)
    assert batch.layout.num_rows == len(rows)
    assert batch.layout.num_decodes == sum(one.num_new == 1 for one in rows)
    assert batch.layout.max_context_len == max(one.end for one in rows)


def test_dtypes_are_those_of_the_layout() -> None:
    batch = batch_of([row(9, 0, 9)])
    layout = batch.layout
    for tensor in (batch.token_ids, batch.outputs, layout.positions, layout.slots):
        assert tensor.dtype == torch.int64
    for tensor in (layout.query_starts, layout.context_lens, layout.block_tables):
        assert tensor.dtype == torch.int32


def test_block_tables_are_padded_with_a_valid_block_id() -> None:
    batch = batch_of([row(2, 1, 1, 50), row(30, 0, 30, 7, batch_slot=1)])
    assert batch.layout.block_tables[0, 2:].eq(0).all()


def test_a_batch_does_not_follow_later_changes() -> None:
    one = row(9, 0, 9)
    batch = batch_of([one])
    before = batch.token_ids.clone(), batch.layout.block_tables.clone()
    one.sequence.tokens[:] = 0
    assert one.sequence.lease is not None
    one.sequence.lease.block_ids[:] = np.int32(9)
    assert torch.equal(batch.token_ids, before[0])
    assert torch.equal(batch.layout.block_tables, before[1])


def test_a_row_without_a_lease_stops_the_step() -> None:
    leaseless = row_of(sequence_of([5, 6, 7]), 3)
    with pytest.raises(RuntimeError, match="without a lease"):
        step_of([leaseless])


def test_a_row_without_a_seat_stops_the_step() -> None:
    seatless = row(3, 0, 3)
    seatless.sequence.batch_slot = None
    with pytest.raises(RuntimeError, match="without a batch slot"):
        step_of([seatless])
