"""The acceptance of a source's drafts for one row, as a decayed mean.

Each row has its own acceptance, because another tenant's drafts must not change its steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.drafting.draft import DraftSource

# The assumed acceptance before any token was verified. It weighs as much as `PRIOR_WEIGHT` tokens.
PRIORS: dict[DraftSource, float] = {
    "prediction": 0.85,
    "grammar": 0.95,
    "tree": 0.8,
    "own": 0.6,
    "answers": 0.6,
    "mtp": 0.7,
}
PRIOR_WEIGHT = 2.0
KEPT = 0.97  # factor of older counts for each further token
LEAST, MOST = 0.02, 0.985
MOST_DRAFTS = 16  # maximum number of drafted tokens in one row
_KEPT_AFTER = [KEPT**count for count in range(MOST_DRAFTS + 2)]


@dataclass(slots=True)
class Acceptance:
    """The probability that a drafted token is accepted if the tokens before it are accepted."""

    prior: float
    accepted: float = 0.0
    rejected: float = 0.0
    probability: float = field(init=False)
    most_expected: float = field(init=False)  # mean of accepted tokens in a draft of `MOST_DRAFTS`

    def __post_init__(self) -> None:
        self.learn(0, is_rejected=False)

    def learn(self, accepted: int, *, is_rejected: bool) -> None:
        """Learn that `accepted` leading tokens were right, and whether the next was wrong."""
        kept = _KEPT_AFTER[accepted + is_rejected]
        self.accepted = right = self.accepted * kept + accepted
        self.rejected = wrong = self.rejected * kept + is_rejected
        probability = (right + PRIOR_WEIGHT * self.prior) / (right + wrong + PRIOR_WEIGHT)
        if not LEAST < probability < MOST:
            probability = LEAST if probability <= LEAST else MOST
        self.probability = probability
        self.most_expected = self.expected(MOST_DRAFTS)

    def expected(self, size: int) -> float:
        """Return the mean number of accepted tokens in a draft of `size` tokens."""
        probability = self.probability
        return probability * (1.0 - probability**size) / (1.0 - probability)
