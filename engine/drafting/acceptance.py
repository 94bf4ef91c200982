"""The chances that drafted tokens are accepted, by the length of the match before them.

A drafted token that follows a long match is rarely wrong, and each accepted token lengthens the
match. For each source of a row, a scale says how often the source's tokens were wrong, relative to
`_MISSES`. Rows share no scales, because one tenant's drafts must not change another tenant's steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from math import log2

import numpy as np
import numpy.typing as npt

from engine.drafting.draft import DraftSource

MOST_DRAFTS = 16  # maximum number of drafted tokens in one row
# The share of wrong tokens after a match of each length. The last entry is for all longer matches.
# Measured on edits, agents' calls and SQL (`benchmarks.engine.draft_texts`).
_MISSES = (0.3, 0.6, 0.42, 0.33, *[0.28] * 2, *[0.22] * 3, *[0.15] * 8, *[0.08] * 16, 0.05)
LONGEST_MATCH = len(_MISSES) - 1
_SUMS = tuple(accumulate(_MISSES, initial=0.0))
MATCHES = (1, 2, 3, 4, 6, 9, 17, LONGEST_MATCH)  # match lengths with tabulated chances
_AT = tuple(sum(length >= one for one in MATCHES[1:]) for length in range(LONGEST_MATCH + 1))
# The assumed scale of each source before any token is verified. This prior weighs as much as
# verified tokens with `PRIOR_WEIGHT` expected misses.
PRIORS: dict[DraftSource, float] = {
    "prediction": 0.7,
    "grammar": 0.3,
    "tree": 0.7,
    "own": 1.0,
    "answers": 1.0,
    "mtp": 1.0,
}
PRIOR_WEIGHT = 2.0
KEPT = 0.97  # factor that decays earlier counts with each verified token
LEVELS = 33  # number of scales from 1/8 to 32, four for each factor of two
_PER_OCTAVE, _MIDDLE = 4, 12
NUM_CURVES = LEVELS * len(MATCHES)


@dataclass(slots=True)
class Acceptance:
    """The chances of one source of a row, learned from its wrong tokens."""

    prior: float
    expected_misses: float = 0.0
    misses: float = 0.0
    _curves: int = field(init=False)  # index in `curves` of the scale's first curve

    def __post_init__(self) -> None:
        self._scale()

    def learn(self, matched: int, accepted: int, *, is_rejected: bool) -> None:
        """Learn that `accepted` drafted tokens were right, and whether the next token was wrong."""
        count = accepted + is_rejected
        short = min(count, max(LONGEST_MATCH - matched, 0))
        matched = min(matched, LONGEST_MATCH)
        expected = _SUMS[matched + short] - _SUMS[matched] + (count - short) * _MISSES[-1]
        kept = KEPT**count
        self.expected_misses = self.expected_misses * kept + expected
        self.misses = self.misses * kept + is_rejected
        self._scale()

    def curve(self, matched: int) -> int:
        """Return the index in `curves` of the chances of a draft after `matched` equal tokens."""
        return self._curves + _AT[matched if matched < LONGEST_MATCH else LONGEST_MATCH]

    def _scale(self) -> None:
        weight = PRIOR_WEIGHT
        scale = (self.misses + weight * self.prior) / (self.expected_misses + weight)
        level = round(log2(scale) * _PER_OCTAVE) + _MIDDLE
        level = 0 if level < 0 else level if level < LEVELS else LEVELS - 1
        self._curves = level * len(MATCHES)


def curves(length: int) -> npt.NDArray[np.float64]:
    """Return the chance of each drafted token if the tokens before it are accepted.

    The shape is (curves, length).
    """
    scales = 2.0 ** ((np.arange(LEVELS) - _MIDDLE) / _PER_OCTAVE)
    lengths = np.add.outer(MATCHES, np.arange(length)).clip(max=LONGEST_MATCH)
    misses = np.multiply.outer(scales, np.array(_MISSES)[lengths])
    chances: npt.NDArray[np.float64] = 1.0 - misses.clip(max=0.98)
    return chances.reshape(NUM_CURVES, length)


def gains() -> list[list[float]]:
    """Return the expected number of accepted tokens by curve, then by draft length from 0 on."""
    accepted = np.cumsum(np.cumprod(curves(MOST_DRAFTS), axis=1), axis=1)
    found: list[list[float]] = np.pad(accepted, ((0, 0), (1, 0))).tolist()
    return found
