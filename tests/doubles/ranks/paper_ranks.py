"""A rank without its group. Its kernels are compiled for peer memory, but never run."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kernels.collectives import peer_gather
from kernels.collectives.peer_rows import PeerProduct, ints_of
from tests.doubles.ranks.plain_peers import PlainPeers


class PaperRanks:
    """One of `num_ranks` ranks, whose products are rows of `columns` numbers of `dtype`."""

    def __init__(self, rank: int, num_ranks: int, columns: int, dtype: torch.dtype) -> None:
        ints = ints_of(dtype)
        assert ints is not None
        self.rank = rank
        self.num_ranks = num_ranks
        rows = PlainPeers(num_ranks, 256, columns, ints).rows[rank]
        # a low bound, so that even small models use two-shot sums
        self._rows = replace(rows, least_saved=64 << 10)

    def total(
        self, product: Tensor, dtype: torch.dtype, *, in_parts: bool = True
    ) -> Tensor | PeerProduct:
        """Return the product, in parts that the next kernel adds."""
        if in_parts:
            return PeerProduct(product, self._rows)
        return product.new_empty(product.shape[-2:], dtype=dtype)

    def gather_columns(self, x: Tensor) -> Tensor:
        """Launch the kernel that gathers columns."""
        return peer_gather.gather(x, self._rows)

    def share(self, x: Tensor) -> None:
        """Launch the kernel that broadcasts rank 0's numbers."""
        peer_gather.share(x, self._rows)
