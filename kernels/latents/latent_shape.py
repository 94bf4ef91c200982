"""The sizes of latent attention, and the number of products of each way to compute it.

    absorbed    per query: q W_k             per query and key: scores over R + P, sums over R
    expanded    per key: c W_k and c W_v     per query and key: scores over N + P, sums over V

A latent is expanded once and attended to by many tokens, so expanding saves time for some hundred
new tokens. Torch is not imported, since configs of models have a `LatentShape`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatentShape:
    """The sizes in numbers: N without position, P rotated, V of values, R of a latent."""

    nope: int
    rope: int
    values: int
    rank: int
    scale: float

    @property
    def head_dim(self) -> int:
        """The numbers of a query's head, N + P."""
        return self.nope + self.rope

    @property
    def latent(self) -> int:
        """The numbers kept of a token, R + P."""
        return self.rank + self.rope

    @property
    def padded_dim(self) -> int:
        """The numbers of a head's key or value, once both are filled up to one size."""
        return max(self.head_dim, self.values)

    def absorbs(self, tokens: int, context: int) -> bool:
        """Return whether absorbing takes fewer products for the last `tokens` of `context`."""
        pairs = tokens * context - tokens * (tokens - 1) // 2
        more_a_pair = 2 * self.rank + self.rope - (self.head_dim + self.values)
        fewer = (context - tokens) * self.rank * (self.nope + self.values)
        return pairs * more_a_pair <= fewer
