"""The ranks that compute a model together (tensor parallel), as its layers use them.

Torch is imported for types alone. Knows: what is asked of the other ranks. Does not know: which
sizes each rank has (`shards`), or how they exchange bytes (`engine.ranks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels.collectives.peer_rows import PeerProduct


class RankGroup(Protocol):
    """The ranks that compute one model together, seen from one of them.

    All of them call the same methods in the same order, with tensors of the same shapes.
    """

    @property
    def rank(self) -> int:
        """Number of this rank, from 0 on."""
        ...

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        ...

    def total(
        self, product: Tensor, dtype: torch.dtype, *, in_parts: bool = True
    ) -> Tensor | PeerProduct:
        """Sum the ranks' products, in rank order; the bits are the same on all ranks.

        (T, H) or in parts (S, T, H) -> (T, H) of `dtype`. With `in_parts` one of each rank, or what
        the norm that reads it makes the sum of; then it is read once.
        """
        ...

    def gather_columns(self, x: Tensor) -> Tensor:
        """Gather x (R, C) of each rank -> (R, num_ranks * C), the ranks' columns side by side."""
        ...

    def share(self, x: Tensor) -> None:
        """Overwrite `x`, contiguous, with rank 0's values: token ids, none negative."""
        ...
