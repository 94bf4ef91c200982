"""The interface of layers to the ranks that compute a model together (tensor parallel).

At import, torch is needed only for types.

Elsewhere: the sizes of each rank's part (`shards`), and the transport of bytes (`engine.ranks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.collectives.peer_rows import PeerProduct


class RankGroup(Protocol):
    """An interface to the ranks that compute one model together.

    All ranks call the same methods in the same order, with tensors of the same shapes.
    """

    @property
    def rank(self) -> int:
        """The number of this rank, counted from 0."""
        ...

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        ...

    def total(
        self, product: Tensor, dtype: torch.dtype, *, in_parts: bool = True
    ) -> Tensor | PeerProduct:
        """Sum the ranks' products, in rank order, with the same bits on all ranks.

        A rank's product is (T, H), or (S, T, H) in S parts. The sum is (T, H) of `dtype`. With
        `in_parts`, the result may instead be the addends, (num_ranks, T, H), or a `PeerProduct`.
        The next norm then sums them, and the result may be read only once.
        """
        ...

    def gather_columns(self, x: Tensor) -> Tensor:
        """Join the columns of all ranks: x (R, C) of each rank -> (R, num_ranks * C)."""
        ...

    def share(self, x: Tensor) -> None:
        """Overwrite `x`, contiguous, with rank 0's values. They are token ids, never negative."""
        ...
