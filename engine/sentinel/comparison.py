"""The comparison of an answer's log-probabilities as served, and without the cache.

These log-probabilities differ by rounding, since the shape of a step decides the order of
additions. A wrong KV block changes most tokens of an answer by far more. The mean difference of an
answer is therefore compared with a bound, which is wider for answers of few tokens. The bounds are
at least twice the largest mean measured on answers without a fault (decision 257).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

BOUNDS = {"float32": 0.01}  # nats, by the dtype of the computation
ROUNDED_BOUND = 0.25  # nats, for bfloat16 and float16, with or without fp8 or int4
FEW = 16  # tokens; of n < FEW tokens, the bound is multiplied by sqrt(FEW / n)
LISTED = 8  # number of tokens that a report lists


class TokenDifference(NamedTuple):
    """A token's position in the sequence, and its two log-probabilities."""

    position: int
    served: float
    again: float

    @property
    def size(self) -> float:
        """The absolute difference, or infinity if either log-probability is not finite."""
        size = abs(self.served - self.again)
        return size if math.isfinite(size) else math.inf


class ScoreComparison(NamedTuple):
    """The mean difference of an answer's tokens in nats, its bound, and the largest differences."""

    mean: float
    bound: float
    largest: tuple[TokenDifference, ...]

    @property
    def differs(self) -> bool:
        """True if the mean difference is more than rounding."""
        return self.mean > self.bound


def bound_for(dtype: str, num_tokens: int) -> float:
    """Return the maximum mean difference, in nats, that rounding may cause."""
    return BOUNDS.get(dtype, ROUNDED_BOUND) * math.sqrt(max(FEW / num_tokens, 1.0))


def compare(
    served: Sequence[float], again: Sequence[float], first: int, dtype: str
) -> ScoreComparison:
    """Compare natural log-probabilities of an answer, whose first token is at `first`.

    `served` and `again` have one log-probability for each token, and at least one.
    """
    pairs = enumerate(zip(served, again, strict=True), first)
    tokens = [TokenDifference(position, *values) for position, values in pairs]
    mean = sum(token.size for token in tokens) / len(tokens)
    largest = sorted(tokens, key=lambda token: -token.size)[:LISTED]
    return ScoreComparison(mean, bound_for(dtype, len(tokens)), tuple(largest))
