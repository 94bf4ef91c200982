"""Ranks that each note their own samples before they take rank 0's."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.ranks.collectives import Collectives, Rendezvous


class NotingGroup(Collectives):
    """A group whose `sampled` (steps, rows) int64 has the tokens of each replayed step, else -1.

    On CUDA the replay of a graph notes its samples, and steps without a graph are not noted, since
    ranks other than 0 sample nothing in them. On a CPU all steps are noted.
    """

    def __init__(self, rendezvous: Rendezvous, device: torch.device, steps: int, rows: int) -> None:
        """Join the group as `Collectives` does; note up to `steps` steps of up to `rows` rows."""
        self.sampled = torch.full((steps, rows), -1, dtype=torch.int64, device=device)
        self._next = torch.zeros(1, dtype=torch.int64, device=device)
        self._is_cuda = device.type == "cuda"
        super().__init__(rendezvous, device)  # on a GPU, this call shares numbers
        self._note(torch.zeros(1, dtype=torch.int64, device=device))  # runs once before a capture
        self.begin()

    @property
    def has_peers(self) -> bool:
        """Whether the ranks exchange over peer memory."""
        return self._peers is not None

    def begin(self) -> None:
        """Forget the samples noted so far."""
        self.sampled.fill_(-1)
        self._next.fill_(0)

    def share(self, x: Tensor) -> None:
        """Note this rank's samples, then take rank 0's."""
        if x.numel() and (not self._is_cuda or torch.cuda.is_current_stream_capturing()):
            self._note(x)
        super().share(x)

    def _note(self, tokens: Tensor) -> None:
        self.sampled[:, : len(tokens)].index_copy_(0, self._next, tokens.unsqueeze(0))
        self._next.add_(1).remainder_(len(self.sampled))
