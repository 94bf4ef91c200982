"""The acceptance of a source's drafts for one row: a decayed mean.

It is a row's own: the drafts of another tenant must not make its steps longer or shorter.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.drafting.draft import DraftSource

# Acceptance of a token before any was verified, worth `PRIOR_WEIGHT` tokens.
PRIORS: dict[DraftSource, float] = {
    "prediction": 0.85,
    "grammar": 0.95,
    "tree": 0.8,
    "own": 0.6,
}
PRIOR_WEIGHT = 2.0
KEPT = 0.97  # part of what was learned that a further token leaves
LEAST, MOST = 0.02, 0.985


@dataclass(slots=True)
class Acceptance:
    """Probability that a drafted token is accepted, if those before it are."""

    prior: float
    accepted: float = 0.0
    rejected: float = 0.0

    def learn(self, accepted: int, *, is_rejected: bool) -> None:
        """Learn that so many leading tokens were right, and whether the next one was wrong."""
        kept: float = KEPT ** (accepted + is_rejected)
        self.accepted = self.accepted * kept + accepted
        self.rejected = self.rejected * kept + is_rejected

    @property
    def probability(self) -> float:
        """The probability, between `LEAST` and `MOST`."""
        right = self.accepted + PRIOR_WEIGHT * self.prior
        known = self.accepted + self.rejected + PRIOR_WEIGHT
        return min(max(right / known, LEAST), MOST)
