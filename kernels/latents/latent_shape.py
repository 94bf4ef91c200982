"""The sizes of latent attention, and the numbers of products of its two methods.

    absorbed    per query: q W_k             per query and key: scores over R + P, sums over R
    expanded    per key: c W_k and c W_v     per query and key: scores over N + P, sums over V

A latent is expanded once, and many tokens attend to the result. The method "expanded" is therefore
faster for about a hundred new tokens or more. This module does not import torch, because model
configs contain a `LatentShape` and must not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatentShape:
    """The counts of numbers: N not rotated, P rotated, V of a value, R of a latent."""

    nope: int
    rope: int
    values: int
    rank: int
    scale: float

    @property
    def head_dim(self) -> int:
        """The count of numbers of a query head, N + P."""
        return self.nope + self.rope

    @property
    def latent(self) -> int:
        """The count of numbers that the pool keeps of a token, R + P."""
        return self.rank + self.rope

    @property
    def padded_dim(self) -> int:
        """The count of numbers of a head's key or value after both are padded to the same size."""
        return max(self.head_dim, self.values)

    def absorbs(self, tokens: int, context: int) -> bool:
        """Return whether "absorbed" needs fewer products for the last `tokens` of `context`."""
        pairs = tokens * context - tokens * (tokens - 1) // 2
        more_a_pair = 2 * self.rank + self.rope - (self.head_dim + self.values)
        fewer = (context - tokens) * self.rank * (self.nope + self.values)
        return pairs * more_a_pair <= fewer
