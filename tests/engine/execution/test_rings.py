"""The slots of rows' blocks in layers with a window, compared with a slow plain computation."""

from __future__ import annotations

from random import Random

import numpy as np
import torch

from engine.execution.rings import RingTables, ring_rows
from engine.execution.row_fields import RING_FIELDS, ring_fields
from engine.step import Row, RowKind, kind_of
from kernels.attention.batch_layout import BatchLayout
from storage.pools.window_pool import RingShape

SHAPE = RingShape(places=5, block_size=4, scratch=60, num_blocks=120)


def row(slot: int, start: int, end: int, *, verifies: bool = False) -> Row:
    kind = RowKind.VERIFY if verifies else kind_of(end - start)
    return Row(slot, slot, kind, start, end, True, False, b"", 0, b"", state_out=slot)


def drawn(random: Random) -> list[Row]:
    slots = random.sample(range(1, 12), random.randint(1, 6))
    starts = [random.randrange(100) for _ in slots]
    rows = [
        row(slot, start, start + random.choice([1, 1, 2, 9, 25]))
        for slot, start in zip(slots, starts, strict=True)
    ]
    return sorted(rows, key=lambda one: one.num_new > 1)


def expected(rows: list[Row]) -> dict[tuple[int, int], int]:
    """Return ids by row and block: ring blocks, and consecutive scratch blocks for a prompt's new
    blocks.
    """
    ids, scratch = {}, SHAPE.scratch
    for at, one in enumerate(rows):
        for block in range(-(-one.end // 4)):
            if one.num_new > 1 and block * 4 >= one.start:
                ids[at, block], scratch = scratch, scratch + 1
            else:
                ids[at, block] = 5 * one.state_out + block % 5
    return ids


def test_tables_and_slots_are_those_of_a_slow_model() -> None:
    random = Random(5)
    for _ in range(200):
        rows = drawn(random)
        ids, width = expected(rows), max(-(-one.end // 4) for one in rows)
        fields = ring_fields(rows, SHAPE)
        tables = RingTables(*(torch.from_numpy(fields[name]) for name in RING_FIELDS))
        like = torch.zeros((len(rows), width), dtype=torch.int32)
        layout = tables.layout(BatchLayout(like, like, like, like, like, 0, 0), SHAPE)
        got = layout.block_tables
        assert all(got[at, block] == one for (at, block), one in ids.items())
        assert int(got.min()) >= 0
        assert int(got.max()) < SHAPE.num_blocks
        slots = [
            ids[at, position // 4] * 4 + position % 4
            for at, one in enumerate(rows)
            for position in range(one.start, one.end)
        ]
        assert layout.slots.tolist() == slots
        assert layout.shared is None


def test_no_two_rows_write_one_place() -> None:
    random = Random(6)
    for _ in range(200):
        slots = ring_fields(drawn(random), SHAPE)["window_slots"]
        assert len(set(slots.tolist())) == len(slots)


def test_a_row_that_verifies_drafts_stays_in_its_ring() -> None:
    places = ring_rows([row(3, 17, 23, verifies=True)], SHAPE)
    at = places.blocks(np.zeros(2, np.int64), np.array([4, 5]), SHAPE)
    assert at.tolist() == [3 * 5 + 4, 3 * 5 + 0]
