"""The device's block tables equal those of the leases after each update."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.execution.graphs.block_tables import DeviceTables
from engine.sequences.sequence import Sequence
from engine.step import Row
from tests.engine.rigs.hand_driven import data_row, hold, sequence_of

BATCH_SLOTS, WIDTH, SCRATCH = 4, 300, 9
DEVICES = [
    torch.device("cpu"),
    pytest.param(torch.device("cuda"), marks=pytest.mark.gpu),
]

pytestmark = pytest.mark.parametrize("device", DEVICES, ids=str)


def tables_on(device: torch.device) -> DeviceTables:
    return DeviceTables(
        num_batch_slots=BATCH_SLOTS, num_blocks=WIDTH, scratch_block=SCRATCH, device=device
    )


def with_batch_slot(batch_slot: int, blocks: list[int]) -> Sequence:
    sequence = sequence_of([1, 2, 3], block_ids=blocks)
    sequence.batch_slot = batch_slot
    return sequence


def rows_of(*sequences: Sequence) -> list[Row]:
    return [data_row(sequence, 0, 1) for sequence in sequences]


def grow(sequence: Sequence, blocks: list[int]) -> None:
    lease = sequence.lease
    assert lease is not None
    lease.block_ids = np.array([*lease.block_ids, *blocks], np.int32)
    lease.num_blocks += len(blocks)


def row_on_device(tables: DeviceTables, batch_slot: int) -> list[int]:
    return tables.device[batch_slot].tolist()


def padded(blocks: list[int]) -> list[int]:
    return blocks + [SCRATCH] * (WIDTH - len(blocks))


def test_before_anything_is_sent_all_rows_point_at_the_scratch_block(device: torch.device) -> None:
    tables = tables_on(device)
    assert tables.device.tolist() == [padded([])] * (BATCH_SLOTS + 1)


def test_one_prompt_is_sent_to_its_row_and_no_other(device: torch.device) -> None:
    tables, blocks = tables_on(device), list(range(100, 233))
    tables.update(rows_of(with_batch_slot(2, blocks)))
    assert [row_on_device(tables, batch_slot) for batch_slot in range(BATCH_SLOTS + 1)] == [
        padded([]),
        padded([]),
        padded(blocks),
        padded([]),
        padded([]),
    ]
    assert tables.host.tolist() == tables.device.tolist()


def test_several_rows_are_sent_together(device: torch.device) -> None:
    tables, one, other = tables_on(device), [5, 4, 3], [30, 31]
    tables.update(rows_of(with_batch_slot(3, one), with_batch_slot(0, other)))
    assert row_on_device(tables, 3) == padded(one)
    assert row_on_device(tables, 0) == padded(other)
    assert tables.host.tolist() == tables.device.tolist()


@pytest.mark.parametrize("others", [0, 2], ids=["alone", "beside others"])
def test_what_a_sequence_gets_later_follows_what_it_had(device: torch.device, others: int) -> None:
    tables = tables_on(device)
    sequences = [with_batch_slot(batch_slot, [20 + batch_slot]) for batch_slot in range(1 + others)]
    tables.update(rows_of(*sequences))
    for batch_slot, sequence in enumerate(sequences):
        grow(sequence, [50 + batch_slot, 60 + batch_slot])
    tables.update(rows_of(*sequences))
    for batch_slot in range(1 + others):
        assert row_on_device(tables, batch_slot) == padded(
            [20 + batch_slot, 50 + batch_slot, 60 + batch_slot]
        )


def test_only_what_is_new_is_sent(device: torch.device) -> None:
    """Set the row on the device to zeros: an update without new blocks then changes no entry, and
    one with a new block changes only the entry of this block.
    """
    tables, sequence = tables_on(device), with_batch_slot(1, [10, 11])
    tables.update(rows_of(sequence))
    tables.device.zero_()
    tables.update(rows_of(sequence))
    assert row_on_device(tables, 1)[:3] == [0, 0, 0]
    grow(sequence, [12])
    tables.update(rows_of(sequence))
    assert row_on_device(tables, 1)[:3] == [0, 0, 12]


def test_a_seat_that_changes_hands_has_its_row_sent_anew(device: torch.device) -> None:
    tables, sequence = tables_on(device), with_batch_slot(1, [10, 11])
    tables.update(rows_of(sequence))
    hold(sequence, [20])
    tables.update(rows_of(sequence))
    assert row_on_device(tables, 1)[0] == 20


def test_what_is_sent_is_what_was_there_when_it_was_sent(device: torch.device) -> None:
    """Change a batch slot on the host while an earlier copy still waits behind other device
    work.
    """
    tables, seen = tables_on(device), []
    for number in range(50):
        if device.type == "cuda":
            torch.cuda._sleep(200_000)  # type: ignore[no-untyped-call]
        tables.update(rows_of(with_batch_slot(0, [number] * 200)))
        seen.append(tables.device[0].clone())
    assert [row[:200].tolist() for row in seen] == [[number] * 200 for number in range(50)]
