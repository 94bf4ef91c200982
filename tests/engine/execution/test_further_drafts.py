"""The draft head drafts more than one token after an accepted sample, if the row has blocks."""

from __future__ import annotations

import numpy as np
import torch

from engine.execution.block_tables import BlockTables
from engine.execution.further_drafts import FURTHER, MOST_FOLLOWED, Followed, followed_rows
from engine.execution.verified_rows import row_by_token
from engine.step import DECODE, PREFILL, SCORE, VERIFY, Row, RowKind

BLOCK_SIZE = 16


def row(slot: int, kind: RowKind, start: int, num_new: int, *, samples: bool = True) -> Row:
    """Return a row of a sequence whose lease id is its batch slot."""
    ids, blocks = np.arange(num_new, dtype=np.int32), np.arange(3, dtype=np.int32)
    end = start + num_new
    data = ids.tobytes(), 0, blocks.tobytes()
    return Row(slot, slot, kind, start, end, samples, False, *data)


def tables_of(rows: list[Row]) -> BlockTables:
    """Return tables of three blocks for each row."""
    tables = BlockTables(num_batch_slots=MOST_FOLLOWED + 8, num_blocks=3)
    tables.update(rows)
    return tables


def test_a_row_of_drafts_follows_the_sample_after_its_last_accepted_one() -> None:
    verified = row_by_token(row(1, VERIFY, 10, 3))
    rows = [row(0, DECODE, 20, 1), *verified, row(2, PREFILL, 0, 4), row(3, SCORE, 0, 5)]
    found = followed_rows(rows, tables_of(rows), BLOCK_SIZE)
    assert found is not None
    assert found.firsts.tolist() == [0, 1, 1, 1, 4]
    assert found.longest.tolist() == [21, 13, 13, 13, 4]
    # indices of the step's tokens that are followed by a sample
    outputs = np.array([0, 1, 2, 3, 7])
    compared = found.compared(outputs, nowhere=8)
    assert compared.tolist() == [8, 2, 3, 8, 8]
    samples, firsts, given, ends = (
        torch.from_numpy(one) for one in (found.samples, found.firsts, compared, found.ends)
    )
    followed = Followed(samples, firsts, given, ends, torch.zeros(5, 3, dtype=torch.int32))
    token_ids = torch.tensor([50, 60, 61, 62, 70, 71, 72, 73])
    for sampled, chosen in (((61, 62, 9), 3), ((61, 9, 9), 2), ((9, 62, 9), 1), ((9, 9, 62), 1)):
        at = followed.chosen(token_ids, torch.tensor([1, *sampled, 2]))
        assert at.tolist() == [0, chosen, chosen, chosen, 4]


def test_a_row_is_followed_while_it_has_blocks_for_its_drafts() -> None:
    last = 3 * BLOCK_SIZE - FURTHER
    rows = [row(slot, DECODE, end - 1, 1) for slot, end in enumerate((last, last + 1, 5))]
    found = followed_rows(rows, tables_of(rows), BLOCK_SIZE)
    assert found is not None
    assert found.samples.tolist() == [0, 2]
    assert found.firsts.tolist() == [0, 1]
    assert followed_rows(rows[1:2], tables_of(rows), BLOCK_SIZE) is None


def test_a_step_of_many_samples_is_not_followed() -> None:
    rows = [row(slot, DECODE, 5, 1) for slot in range(MOST_FOLLOWED + 1)]
    assert followed_rows(rows, tables_of(rows), BLOCK_SIZE) is None
    assert followed_rows(rows[1:], tables_of(rows), BLOCK_SIZE) is not None
    quiet = [row(0, PREFILL, 0, 5, samples=False)]
    assert followed_rows(quiet, tables_of(quiet), BLOCK_SIZE) is None
