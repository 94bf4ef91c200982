"""The acceptance of a source's drafts for one row, as a decayed mean.

Each row has its own acceptance, because another tenant's drafts must not change its steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.drafting.draft import DraftSource

# The acceptance that is assumed before any token was verified. It weighs as much as `PRIOR_WEIGHT`
# verified tokens.
PRIORS: dict[DraftSource, float] = {
    "prediction": 0.85,
    "grammar": 0.95,
    "tree": 0.8,
    "own": 0.6,
    "answers": 0.6,
    "mtp": 0.7,
}
PRIOR_WEIGHT = 2.0
KEPT = 0.97  # earlier counts are multiplied by this factor for each verified token
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
    _most_expected: float = field(init=False)  # 0: not computed since the last tokens

    def __post_init__(self) -> None:
        self.learn(0, is_rejected=False)

    @property
    def most_expected(self) -> float:
        """The mean number of accepted tokens in a draft of `MOST_DRAFTS` tokens."""
        if not self._most_expected:
            self._most_expected = self.expected(MOST_DRAFTS)
        return self._most_expected

    def learn(self, accepted: int, *, is_rejected: bool) -> None:
        """Learn that `accepted` leading tokens were right, and whether the next was wrong."""
        self.take(self.after(accepted, is_rejected=is_rejected))

    def after(self, accepted: int, *, is_rejected: bool) -> tuple[float, float, float]:
        """Return what `learn` would learn from these tokens, for `take`."""
        kept = _KEPT_AFTER[accepted + is_rejected]
        right, wrong = self.accepted * kept + accepted, self.rejected * kept + is_rejected
        probability = (right + PRIOR_WEIGHT * self.prior) / (right + wrong + PRIOR_WEIGHT)
        if not LEAST < probability < MOST:
            probability = LEAST if probability <= LEAST else MOST
        return right, wrong, probability

    def take(self, learned: tuple[float, float, float]) -> None:
        """Learn what `after` returned."""
        self.accepted, self.rejected, self.probability = learned
        self._most_expected = 0.0

    def expected(self, size: int) -> float:
        """Return the mean number of accepted tokens in a draft of `size` tokens."""
        probability = self.probability
        return probability * (1.0 - probability**size) / (1.0 - probability)
