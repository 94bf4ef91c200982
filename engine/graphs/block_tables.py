"""The block ids of all running sequences, by seat, on the host and on the device.

A step sends only what is new: the blocks that its sequences got since they were last seen.

Knows: seats, leases' block ids. Does not know: which rows a step has, or what reads the tables.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from engine.batch import blocks_of, seat_of
from engine.staging import to_device
from engine.step import Row
from prefix_cache.lease import Lease


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
        if not news:
            return
        width = self.host.shape[1]
        places, blocks = [], []
        for seat, row in news:
            first, ids = self._first_new(seat, row), blocks_of(row)
            self.host[seat, first : len(ids)] = ids[first:]
            places.append(np.arange(seat * width + first, seat * width + len(ids)))
            blocks.append(ids[first:])
        self._send(np.concatenate(places), np.concatenate(blocks))
        for seat, row in news:  # only now: where `_send` raises, nothing counts as sent
            self._leases[seat], self._known[seat] = row.lease, len(blocks_of(row))

    def _is_new(self, row: Row) -> bool:
        seat, lease = row.sequence.seat, row.lease
        if seat is None or lease is None:
            return True
        return self._leases[seat] is not lease or self._known[seat] != lease.num_blocks

    def _first_new(self, seat: int, row: Row) -> int:
        return self._known[seat] if self._leases[seat] is row.lease else 0

    def _send(self, places: npt.NDArray[np.int64], blocks: npt.NDArray[np.int32]) -> None:
        on_device = to_device((places, blocks), self.device.device)
        self.device.view(-1).index_copy_(0, *on_device)
