"""Ranks that record their own samples before they take rank 0's samples."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.ranks.collectives import Collectives, Rendezvous


class NotingGroup(Collectives):
    """A group that records each step's tokens in `sampled`, (steps, rows) int64; -1: unset.

    On CUDA only the replay of a graph records samples, since in other steps only rank 0 samples. On
    a CPU all steps are recorded.
    """

    def __init__(self, rendezvous: Rendezvous, device: torch.device, steps: int, rows: int) -> None:
        """Join the group like `Collectives`. Record up to `steps` steps of up to `rows` rows."""
        self.sampled = torch.full((steps, rows), -1, dtype=torch.int64, device=device)
        self._next = torch.zeros(1, dtype=torch.int64, device=device)
        self._is_cuda = device.type == "cuda"
        super().__init__(rendezvous, device)  # on a GPU, this call already broadcasts numbers
        # a kernel must have run once before it is captured
        self._note(torch.zeros(1, dtype=torch.int64, device=device))
        self.begin()

    @property
    def has_peers(self) -> bool:
        """True if the ranks exchange over peer memory."""
        return self._peers is not None

    def begin(self) -> None:
        """Forget the samples recorded so far."""
        self.sampled.fill_(-1)
        self._next.fill_(0)

    def share(self, x: Tensor) -> None:
        """Record this rank's samples, then take rank 0's samples."""
        if x.numel() and (not self._is_cuda or torch.cuda.is_current_stream_capturing()):
            self._note(x)
        super().share(x)

    def _note(self, tokens: Tensor) -> None:
        self.sampled[:, : len(tokens)].index_copy_(0, self._next, tokens.unsqueeze(0))
        self._next.add_(1).remainder_(len(self.sampled))
