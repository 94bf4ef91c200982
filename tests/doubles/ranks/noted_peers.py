"""Peer memory that records exchanges and carries out none."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.collectives.peer_rows import PeerProduct
from tests.doubles.ranks.plain_peers import PlainPeers


class NotedPeers:
    """A `PeerMemory` of two ranks with room for `most_rows` rows, and for gathers if `gathers`."""

    def __init__(self, most_rows: int, *, gathers: bool = True) -> None:
        self.noted: list[str] = []
        self._gathers = gathers
        self._most_rows = most_rows
        self._rows = PlainPeers(2, 1, 1, torch.int32).rows[0]

    def product(self, part: Tensor, dtype: torch.dtype) -> PeerProduct | None:
        """Record a product, and return its parts."""
        fits = part.shape[-2] <= self._most_rows and dtype == torch.float32
        return PeerProduct(part, self._rows) if self._note("product", fits) else None

    def gather(self, x: Tensor) -> Tensor | None:
        """Record a gather, in which both ranks have the same numbers."""
        fits = self._gathers and x.numel() <= 64 * self._most_rows
        return torch.cat((x, x), 1) if self._note("gather", fits) else None

    def share(self, x: Tensor) -> bool:
        """Record a broadcast, in which rank 0 has only sevens."""
        fits = self._note("share", len(x) <= self._most_rows)
        if fits:
            x.fill_(7)
        return fits

    def abandon(self) -> None:
        """Record that an exchange was abandoned."""
        self._note("abandon", True)

    def _note(self, what: str, fits: bool) -> bool:
        if fits:
            self.noted.append(what)
        return fits
