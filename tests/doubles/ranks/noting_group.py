"""Ranks of which each notes what it sampled itself, before it takes what rank 0 did."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.ranks.collectives import Collectives, Rendezvous


class NotingGroup(Collectives):
    """`sampled` (steps, rows) int64: the tokens of each replayed step; -1 where there are none.

    On CUDA a graph notes as it is replayed, and steps without one are not noted: in them another
    rank than 0 samples nothing. On a CPU all are noted.
    """

    def __init__(self, rendezvous: Rendezvous, device: torch.device, steps: int, rows: int) -> None:
        """As `Collectives`; for so many steps of at most so many rows."""
        self.sampled = torch.full((steps, rows), -1, dtype=torch.int64, device=device)
        self._next = torch.zeros(1, dtype=torch.int64, device=device)
        self._is_cuda = device.type == "cuda"
        super().__init__(rendezvous, device)  # which shares numbers, on a GPU
        self._note(torch.zeros(1, dtype=torch.int64, device=device))  # loaded before it is captured
        self.begin()

    @property
    def has_peers(self) -> bool:
        """Whether they exchange over peer memory."""
        return self._peers is not None

    def begin(self) -> None:
        """Forget what was noted so far."""
        self.sampled.fill_(-1)
        self._next.fill_(0)

    def share(self, x: Tensor) -> None:
        """As `Collectives.share`."""
        if x.numel() and (not self._is_cuda or torch.cuda.is_current_stream_capturing()):
            self._note(x)
        super().share(x)

    def _note(self, tokens: Tensor) -> None:
        self.sampled[:, : len(tokens)].index_copy_(0, self._next, tokens.unsqueeze(0))
        self._next.add_(1).remainder_(len(self.sampled))
