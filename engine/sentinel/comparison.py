"""The comparison of an answer's log probabilities as served with those without the cache.

The two differ by rounding, because the shape of a step determines the order of additions. A wrong
KV block changes most tokens of an answer by far more. The mean difference over an answer is
therefore compared with a bound, which is wider for answers with few tokens. The bounds are at least
twice the largest mean that was measured on correct answers (decision 257).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

BOUNDS = {"float32": 0.01}  # bounds in nats, by the dtype of the computation
ROUNDED_BOUND = 0.25  # bound in nats for bfloat16 and float16, with or without fp8 or int4
FEW = 16  # for n < FEW tokens, the bound is multiplied by sqrt(FEW / n)
LISTED = 8  # number of tokens that a report lists


class TokenDifference(NamedTuple):
    """The position of a token in the sequence, and its two log probabilities."""

    position: int
    served: float
    again: float

    @property
    def size(self) -> float:
        """The absolute difference, or infinity if one of the two is not finite."""
        size = abs(self.served - self.again)
        return size if math.isfinite(size) else math.inf


class ScoreComparison(NamedTuple):
    """The mean difference over an answer's tokens in nats, its bound, and the largest ones."""

    mean: float
    bound: float
    largest: tuple[TokenDifference, ...]

    @property
    def differs(self) -> bool:
        """True if the mean difference is larger than rounding can explain."""
        return self.mean > self.bound


def bound_for(dtype: str, num_tokens: int) -> float:
    """Return the maximum mean difference, in nats, that rounding may cause."""
    return BOUNDS.get(dtype, ROUNDED_BOUND) * math.sqrt(max(FEW / num_tokens, 1.0))


def compare(
    served: Sequence[float], again: Sequence[float], first: int, dtype: str
) -> ScoreComparison:
    """Compare natural log probabilities of an answer that begins at position `first`.

    `served` and `again` have one for each token of the answer. There is at least one token.
    """
    pairs = enumerate(zip(served, again, strict=True), first)
    tokens = [TokenDifference(position, *values) for position, values in pairs]
    mean = sum(token.size for token in tokens) / len(tokens)
    largest = sorted(tokens, key=lambda token: -token.size)[:LISTED]
    return ScoreComparison(mean, bound_for(dtype, len(tokens)), tuple(largest))
