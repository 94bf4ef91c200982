"""The ranks that compute a model together (tensor parallel), as its layers use them.

Torch is imported only for types. Knows: the operations between ranks. Does not know: the sizes that
each rank has (`shards`), or how ranks exchange bytes (`engine.ranks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.collectives.peer_rows import PeerProduct


class RankGroup(Protocol):
    """The ranks that compute one model together, as one rank sees them.

    All ranks call the same methods in the same order, with tensors of the same shapes.
    """

    @property
    def rank(self) -> int:
        """Number of this rank; the first rank is 0."""
        ...

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        ...

    def total(
        self, product: Tensor, dtype: torch.dtype, *, in_parts: bool = True
    ) -> Tensor | PeerProduct:
        """Sum the ranks' products, in rank order; the bits are the same on all ranks.

        (T, H) or in parts (S, T, H) -> (T, H) of `dtype`. With `in_parts` the result may be one
        part from each rank, or an object that the next norm sums; the result may be read only once.
        """
        ...

    def gather_columns(self, x: Tensor) -> Tensor:
        """Gather x (R, C) of each rank -> (R, num_ranks * C), the ranks' columns side by side."""
        ...

    def share(self, x: Tensor) -> None:
        """Overwrite `x`, contiguous, with rank 0's values: token ids, none negative."""
        ...
