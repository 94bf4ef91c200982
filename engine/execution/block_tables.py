"""The block ids of all running sequences by batch slot, collected from the rows of steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.step import Row


class BlockRun(NamedTuple):
    """The blocks in the table row of one batch slot, from column `first` on."""

    batch_slot: int
    first: int
    blocks: npt.NDArray[np.int32]

    @property
    def end(self) -> int:
        """The column after the last block."""
        return self.first + len(self.blocks)


class BlockTables:
    """The block ids, by batch slot.

    `host` (batch slots + 1, blocks) int32 has `num_blocks` valid ids in each row. Padding rows read
    the last table row, `nobody`. Used by one thread only.
    """

    def __init__(self, *, num_batch_slots: int, num_blocks: int, scratch_block: int = 0) -> None:
        """Allocate table rows of `num_blocks`. The row of padding points to `scratch_block`."""
        self.nobody = num_batch_slots
        shape = (num_batch_slots + 1, num_blocks)
        self.host: npt.NDArray[np.int32] = np.full(shape, scratch_block, np.int32)
        self.num_blocks = np.zeros(num_batch_slots + 1, np.int32)

    def update(self, rows: Iterable[Row]) -> None:
        """Write the new blocks of `rows` to the tables. Repeating the call changes nothing."""
        runs = [
            BlockRun(row.batch_slot, row.first_block, np.frombuffer(row.block_ids, np.int32))
            for row in rows
            if row.block_ids
        ]
        for run in runs:
            self.host[run.batch_slot, run.first : run.end] = run.blocks
            self.num_blocks[run.batch_slot] = run.end
        if runs:
            self._send(runs)

    def of(self, batch_slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the table rows of `batch_slots` (R,), cut to the length of the longest row.

        A shorter row is filled with 0 after its last block.
        """
        lengths = self.num_blocks[batch_slots]
        tables = self.host[batch_slots, : lengths.max()]
        tables[np.arange(tables.shape[1]) >= lengths[:, None]] = 0
        return tables

    def _send(self, runs: list[BlockRun]) -> None:
        """Send changes to the device's copy of the tables, if it has a copy."""
