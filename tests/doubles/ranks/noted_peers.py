"""Peer memory that notes what would be exchanged over it, and exchanges nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.collectives.peer_rows import PeerProduct
from tests.doubles.ranks.plain_peers import PlainPeers


class NotedPeers:
    """As `PeerMemory`, of two ranks; up to `most_rows` rows fit, and none if it never `gathers`."""

    def __init__(self, most_rows: int, *, gathers: bool = True) -> None:
        self.noted: list[str] = []
        self._gathers = gathers
        self._most_rows = most_rows
        self._rows = PlainPeers(2, 1, 1, torch.int32).rows[0]

    def product(self, part: Tensor, dtype: torch.dtype) -> PeerProduct | None:
        """As `PeerMemory.product`."""
        fits = part.shape[-2] <= self._most_rows and dtype == torch.float32
        return PeerProduct(part, self._rows) if self._note("product", fits) else None

    def gather(self, x: Tensor) -> Tensor | None:
        """As `PeerMemory.gather`; both ranks have what this one has."""
        fits = self._gathers and x.numel() <= 64 * self._most_rows
        return torch.cat((x, x), 1) if self._note("gather", fits) else None

    def share(self, x: Tensor) -> bool:
        """As `PeerMemory.share`; rank 0 has only sevens."""
        fits = self._note("share", len(x) <= self._most_rows)
        if fits:
            x.fill_(7)
        return fits

    def abandon(self) -> None:
        """As `PeerMemory.abandon`."""
        self._note("abandon", True)

    def _note(self, what: str, fits: bool) -> bool:
        if fits:
            self.noted.append(what)
        return fits
