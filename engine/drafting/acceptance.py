"""The chances that drafted tokens are accepted, by the length of the match before them.

After a match of n tokens, the odds that the next token is right are n to 2: two wrong tokens are
assumed before the match (rule of succession). Each source of a row multiplies these odds by its own
ratio of right and wrong tokens to the expected ones. Each row has ratios of its own, because
another tenant's drafts must not change its steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from math import log2

import numpy as np
import numpy.typing as npt

from engine.drafting.draft import DraftSource

# The maximum number of drafted tokens in one row. With the token before them, they fill a captured
# graph of 64.
MOST_DRAFTS = 63
LONGEST_MATCH = 32  # longer matches have the chances of this length
_ASSUMED_WRONG = 2.0
_MISSES = [_ASSUMED_WRONG / (_ASSUMED_WRONG + length) for length in range(LONGEST_MATCH + 1)]
_SUMS = tuple(accumulate(_MISSES, initial=0.0))
MATCHES = (1, 2, 3, 4, 6, 9, 17, LONGEST_MATCH)  # match lengths with tabulated chances
_AT = tuple(sum(length >= one for one in MATCHES[1:]) for length in range(LONGEST_MATCH + 1))
# The assumed odds of a wrong token, relative to those after a match in the own text.
PRIORS: dict[DraftSource, float] = {
    "prediction": 0.5,
    "grammar": 0.1,
    "tree": 0.5,
    "own": 1.0,
    "answers": 1.0,
    "mtp": 0.5,
}
# The prior weighs as much as this many wrong and this many right tokens. The number of right tokens
# is small, so that a source that is always wrong soon has small chances.
PRIOR_WRONG, PRIOR_RIGHT = 2.0, 0.5
KEPT = 0.97  # factor that decays earlier counts with each verified token
LEVELS = 21  # number of ratios from 1/32 to 32, two for each factor of two
_PER_OCTAVE, _MIDDLE = 2, 10
NUM_CURVES = LEVELS * len(MATCHES)


@dataclass(slots=True)
class Acceptance:
    """The chances of one source of a row, learned from its right and wrong tokens."""

    prior: float
    tokens: float = 0.0
    misses: float = 0.0
    expected_misses: float = 0.0
    _curves: int = field(init=False)  # index in `curves` of the ratio's first curve

    def __post_init__(self) -> None:
        self._scale()

    def learn(self, matched: int, accepted: int, *, is_rejected: bool) -> None:
        """Learn that `accepted` drafted tokens were right, and whether the next token was wrong."""
        count = accepted + is_rejected
        kept = KEPT**count
        expected = _expected_misses(matched + count) - _expected_misses(matched)
        self.tokens = self.tokens * kept + count
        self.misses = self.misses * kept + is_rejected
        self.expected_misses = self.expected_misses * kept + expected
        self._scale()

    def curve(self, matched: int) -> int:
        """Return the index in `curves` of the chances of a draft after `matched` equal tokens."""
        return self._curves + _AT[matched if matched < LONGEST_MATCH else LONGEST_MATCH]

    def _scale(self) -> None:
        misses, expected, prior = self.misses, self.expected_misses, self.prior
        wrong = (misses + PRIOR_WRONG * prior) / (expected + PRIOR_WRONG)
        right = (self.tokens - misses + PRIOR_RIGHT) / (self.tokens - expected + PRIOR_RIGHT)
        level = round(log2(wrong / right) * _PER_OCTAVE) + _MIDDLE
        level = 0 if level < 0 else level if level < LEVELS else LEVELS - 1
        self._curves = level * len(MATCHES)


def _expected_misses(length: int) -> float:
    """Return the sum of the expected misses after matches of fewer than `length` tokens."""
    if length <= LONGEST_MATCH:
        return _SUMS[length]
    return _SUMS[LONGEST_MATCH] + (length - LONGEST_MATCH) * _MISSES[LONGEST_MATCH]


def curves(length: int) -> npt.NDArray[np.float64]:
    """Return the chance of each drafted token if the tokens before it are accepted.

    The shape is (curves, length).
    """
    ratios = 2.0 ** ((np.arange(LEVELS) - _MIDDLE) / _PER_OCTAVE)
    lengths = np.add.outer(MATCHES, np.arange(length)).clip(max=LONGEST_MATCH)
    chances: npt.NDArray[np.float64] = 1 / (1 + np.multiply.outer(ratios, _ASSUMED_WRONG / lengths))
    return chances.reshape(NUM_CURVES, length)


def gains() -> list[list[float]]:
    """Return the expected number of accepted tokens by curve, then by draft length from 0 on."""
    accepted = np.cumsum(np.cumprod(curves(MOST_DRAFTS), axis=1), axis=1)
    found: list[list[float]] = np.pad(accepted, ((0, 0), (1, 0))).tolist()
    return found
