"""The block ids of all running sequences, by seat, on the host and on the device.

A step sends only what is new: the blocks that its sequences got since they were last seen.

Knows: seats, leases' block ids. Does not know: which rows a step has, or what reads the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.batch import blocks_of, seat_of
from engine.staging import host_buffer, to_device
from engine.step import Row
from prefix_cache.lease import Lease


class Run(NamedTuple):
    """Blocks of the row of a seat that lie next to each other; the first is its block `first`."""

    seat: int
    first: int
    blocks: npt.NDArray[np.int32]


class BlockTables:
    """`host` and `device`: (seats + 1, blocks) int32. Padding reads the last row, `nobody`.

    One owner thread; the device's copy changes in the order of the stream.
    """

    def __init__(
        self, *, num_seats: int, num_blocks: int, scratch_block: int, device: torch.device
    ) -> None:
        """`num_blocks` is what the longest sequence has; padding points at `scratch_block`."""
        self.nobody = num_seats
        self.host: npt.NDArray[np.int32] = np.full(
            (num_seats + 1, num_blocks), scratch_block, np.int32
        )
        self.device = torch.from_numpy(self.host.copy()).to(device)
        self._leases: list[Lease | None] = [None] * num_seats
        self._known = [0] * num_seats  # blocks of the lease that the device has

    def update(self, rows: Iterable[Row]) -> None:
        """Bring the tables up to what the rows' leases hold now; waits for nothing."""
        news = [(seat_of(row), row) for row in rows if self._is_new(row)]
        runs = [self._new_run(seat, row) for seat, row in news]
        if len(runs) == 1:
            self._send_run(runs[0])
        elif runs:
            self._send_scattered(runs)
        for seat, row in news:  # only now: where sending raises, nothing counts as sent
            self._leases[seat], self._known[seat] = row.lease, len(blocks_of(row))

    def _is_new(self, row: Row) -> bool:
        seat, lease = row.sequence.seat, row.lease
        if seat is None or lease is None:
            return True
        return self._leases[seat] is not lease or self._known[seat] != lease.num_blocks

    def _new_run(self, seat: int, row: Row) -> Run:
        """What the device does not have of a row, which the host's table has from now on."""
        blocks = blocks_of(row)
        first = self._known[seat] if self._leases[seat] is row.lease else 0
        self.host[seat, first : len(blocks)] = blocks[first:]
        return Run(seat, first, blocks[first:])

    def _send_run(self, run: Run) -> None:
        """A prompt's blocks, or one of a sequence that grew: copied into place, no kernel."""
        staging = host_buffer(run.blocks.shape, torch.int32, self.device.device)
        staging.numpy()[:] = run.blocks
        end = run.first + len(run.blocks)
        self.device[run.seat, run.first : end].copy_(staging, non_blocking=True)

    def _send_scattered(self, runs: Sequence[Run]) -> None:
        """Runs of several rows, in one copy and one kernel."""
        width = self.host.shape[1]
        starts = [run.seat * width + run.first for run in runs]
        places = [
            np.arange(start, start + len(run.blocks))
            for start, run in zip(starts, runs, strict=True)
        ]
        arrays = np.concatenate(places), np.concatenate([run.blocks for run in runs])
        self.device.view(-1).index_copy_(0, *to_device(arrays, self.device.device))
