"""Ranks whose peer memory is ordinary memory of one process, for kernels in the interpreter.

In the interpreter, a launch runs to its end before the next begins. So the data for which rank 0
waits must be in rank 0's buffer before rank 0's launch. `arrive` writes the data that the other
ranks' kernels would write, and these kernels later write the same data again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.collectives.peer_rows import TURNS, PeerRows, open_rows


class PlainPeers:
    """A double of ranks that write to each other. `rows` has each rank's view of all buffers."""

    def __init__(self, num_ranks: int, num_rows: int, columns: int, ints: torch.dtype) -> None:
        self.ints = ints
        shape = (TURNS, num_rows, num_ranks, columns)
        self._buffers = [torch.empty(shape, dtype=ints) for _ in range(num_ranks)]
        self.rows: list[PeerRows] = [open_rows(rank, self._buffers) for rank in range(num_ranks)]

    def arrive(self, numbers: Sequence[Tensor], sums: Tensor | None = None) -> None:
        """Write each rank's next data, (rows, at most columns), to the other ranks' buffers.

        `sums` are given for a two-shot exchange: each row is written to its owner, and the owner's
        sum to the other ranks.
        """
        for rank, sent in enumerate(numbers):
            for row, content in enumerate(sent):
                owner = row % len(self.rows)
                for to in self.rows:
                    if sums is None or to.rank == owner:
                        self._put(to, rank, row, content)
                    elif rank == owner:
                        self._put(to, rank, row, sums[row])

    def _put(self, to: PeerRows, rank: int, row: int, content: Tensor) -> None:
        if to.rank != rank:
            own = to.own.view(content.dtype)
            own[int(to.turns[row]) % TURNS, row, rank, : len(content)] = content
