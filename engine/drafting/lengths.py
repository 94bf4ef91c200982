"""The lengths of drafts that pay: tokens a second with drafts against tokens a second without.

A verified draft costs about what a further row of one token costs, and its i-th token is accepted
with probability p^i, p being the row's own acceptance. Lengths are chosen for all rows of a step
together: all drafted tokens whose probability reaches a threshold, for the threshold at which the
step yields the most tokens a second. A step with drafts also costs the host's time that otherwise
hides beside the step before it.

Knows: probabilities, predicted seconds. Does not know: sequences, tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

StepSeconds = Callable[[int], float | None]  # rows of one token -> seconds; 0 or None: unknown

MOST_DRAFTS = 16  # tokens of one row
THRESHOLDS = (0.85, 0.7, 0.55, 0.42, 0.3, 0.2, 0.12, 0.06)
LEVELS = 64  # of acceptances, which are rounded
GAIN = 1.02  # drafts must yield so many times the tokens a second: predictions are not exact
UNKNOWN_ROWS = 64  # cost of a step of unknown time, whatever is in it, in rows
ASKED_AGAIN = 256  # decisions after which seconds are predicted anew


def no_seconds() -> float:
    """Return 0: a step with drafts costs the host nothing more."""
    return 0.0


class Payoff:
    """Choice of the lengths of a step's drafts."""

    def __init__(
        self,
        step_seconds: StepSeconds,
        host_seconds: Callable[[], float] = no_seconds,
        most_rows: int | None = None,
    ) -> None:
        """Predict steps of so many decode rows by `step_seconds`.

        `host_seconds` is what a step takes longer because it is decided only after the step before
        it has been settled. `most_rows`: a step has no more rows and drafted tokens together.
        """
        self._step_seconds, self._host_seconds = step_seconds, host_seconds
        self._most_rows = most_rows
        self._predicted: dict[int, float] = {}
        self._decisions = 0
        # (levels, tokens) probabilities that so many tokens are all accepted
        levels = (np.arange(LEVELS)[:, None] + 0.5) / LEVELS
        chances = levels ** np.arange(1, 2 * MOST_DRAFTS + 1)
        # (thresholds, levels) longest drafts; (levels, tokens + 1) accepted tokens, expected
        self._longest = np.array([(chances >= least).sum(axis=1) for least in THRESHOLDS])
        self._gains = np.pad(np.cumsum(chances, axis=1), ((0, 0), (1, 0)))

    def can_pay(self, rows: int) -> bool:
        """Return whether drafts of `rows` rows would pay if each token were accepted."""
        return any(self._speed(rows, rows * n, rows * n) > GAIN for n in (1, 4, MOST_DRAFTS))

    def lengths(
        self, rows: int, chances: Sequence[tuple[float, int]], pending: int = 0
    ) -> list[int]:
        """Choose how many tokens of each draft to verify in a step of `rows` rows.

        `chances` are each draft's acceptance of a token, in (0, 1), and its length. `pending`: so
        many tokens of each draft will be known before any is verified.
        """
        if not chances:
            return []
        self._decisions += 1
        accepted, most = zip(*chances, strict=True)
        levels = (np.array(accepted) * LEVELS).astype(np.intp)
        room = np.maximum(np.minimum(np.array(most) - pending, MOST_DRAFTS), 0)
        pending = min(pending, MOST_DRAFTS)
        lengths = np.minimum(np.maximum(self._longest[:, levels] - pending, 0), room)
        gains = self._gains[levels, lengths + pending] - self._gains[levels, pending]
        drafted, gained = lengths.sum(axis=1).tolist(), gains.sum(axis=1).tolist()
        speeds = [
            self._speed(rows, tokens, gain) for tokens, gain in zip(drafted, gained, strict=True)
        ]
        fastest = max(speeds)
        if fastest <= GAIN:
            return [0] * len(chances)
        chosen: list[int] = lengths[speeds.index(fastest)].tolist()
        return chosen

    def _speed(self, rows: int, drafted: int, accepted: float) -> float:
        """Return tokens a second with so many drafted and accepted tokens, as times without any."""
        if not drafted:
            return 1.0
        if self._most_rows is not None and rows + drafted > self._most_rows:
            return 0.0
        plain, longer = self._seconds(rows), self._seconds(rows + drafted)
        if plain is None or longer is None:
            plain, longer = UNKNOWN_ROWS + rows, UNKNOWN_ROWS + rows + drafted
        else:
            longer += self._host_seconds()
        return (rows + accepted) / rows * plain / longer

    def _seconds(self, rows: int) -> float | None:
        if self._decisions >= ASKED_AGAIN:
            self._predicted.clear()
            self._decisions = 0
        seconds = self._predicted.get(rows)
        if seconds is None:
            seconds = self._step_seconds(rows) or None
            if seconds is not None:
                self._predicted[rows] = seconds
        return seconds
