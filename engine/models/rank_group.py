"""The ranks that compute a model together (tensor parallel), as its layers use them.

Torch is imported only for types.

Elsewhere: the sizes that each rank has (`shards`), and how ranks exchange bytes (`engine.ranks`).
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

        The products are (T, H) or in parts (S, T, H), and the sum is (T, H) of `dtype`. With
        `in_parts` the result may instead be the addends, (num_ranks, T, H), or a `PeerProduct`,
        which the next norm sums.
        The result may be read only once.
        """
        ...

    def gather_columns(self, x: Tensor) -> Tensor:
        """Gather x (R, C) of each rank -> (R, num_ranks * C), the ranks' columns side by side."""
        ...

    def share(self, x: Tensor) -> None:
        """Overwrite `x`, contiguous, with rank 0's values: token ids, none negative."""
        ...
