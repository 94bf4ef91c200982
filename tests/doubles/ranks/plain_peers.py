"""Ranks whose peer memory is plain memory of one process, for kernels in the interpreter.

There a launch runs to its end before the next one begins, so what rank 0 waits for is put into its
buffer before its launch: `arrive` writes as the other ranks' kernels would, which do so again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.collectives.peer_rows import TURNS, PeerRows, open_rows


class PlainPeers:
    """So many ranks, with buffers of these sizes; `rows` has what each has of them."""

    def __init__(self, num_ranks: int, num_rows: int, columns: int, ints: torch.dtype) -> None:
        self.ints = ints
        shape = (TURNS, num_rows, num_ranks, columns)
        self._buffers = [torch.empty(shape, dtype=ints) for _ in range(num_ranks)]
        self.rows: list[PeerRows] = [open_rows(rank, self._buffers) for rank in range(num_ranks)]

    def arrive(self, numbers: Sequence[Tensor], sums: Tensor | None = None) -> None:
        """What each rank sends in the coming turn, (rows, at most columns), reaches the others.

        Two-shot there are `sums`: those of a row's owner reach the others, and their rows it.
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
