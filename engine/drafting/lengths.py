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
import numpy.typing as npt

from engine.drafting.acceptance import MOST_DRAFTS

StepSeconds = Callable[[int], float | None]  # rows of one token -> seconds; 0 or None: unknown

THRESHOLDS = (0.85, 0.7, 0.55, 0.42, 0.3, 0.2, 0.12, 0.06)
COUNT = len(THRESHOLDS)
LEVELS = 64  # an acceptance is rounded to one of them
SIZES = MOST_DRAFTS + 1  # numbers of tokens that a draft may have
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
        *,
        has_states: bool = False,
    ) -> None:
        """Predict a step's seconds from its decode rows by `step_seconds`.

        `host_seconds` is what a step takes longer because it is decided only after the step before
        it has been settled. `most_rows`: a step has no more rows and drafted tokens together.
        `has_states`: accepted tokens are computed again, from the state before them.
        """
        self._step_seconds, self._host_seconds = step_seconds, host_seconds
        self._most_rows = most_rows
        self._has_states = has_states
        self._predicted: dict[int, float] = {}
        self._decisions = 0
        self._tables: dict[int, _Table] = {}  # by pending tokens

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
        pending = min(pending, MOST_DRAFTS)
        table = self._tables.get(pending)
        if table is None:
            table = self._tables[pending] = _Table(pending)
        places = [_place(probability, size) for probability, size in chances]
        sums: list[float] = table.both[:, places].sum(axis=1).tolist()
        fastest, best = GAIN, -1
        for at, (drafted, gained) in enumerate(zip(sums[:COUNT], sums[COUNT:], strict=True)):
            speed = self._speed(rows, int(drafted), gained)
            if speed > fastest:
                fastest, best = speed, at
        if best < 0:
            return [0] * len(chances)
        lengths = table.lengths[best]
        return [lengths[place] for place in places]

    def _speed(self, rows: int, drafted: int, accepted: float) -> float:
        """Return the speed with these drafted and accepted tokens, relative to none."""
        if not drafted:
            return 1.0
        if self._most_rows is not None and rows + drafted > self._most_rows:
            return 0.0
        computed = rows + drafted + (int(accepted) if self._has_states else 0)
        plain, longer = self._seconds(rows), self._seconds(computed)
        if plain is None or longer is None:
            plain, longer = UNKNOWN_ROWS + rows, UNKNOWN_ROWS + computed
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


class _Table:
    """Lengths of a row's draft, and the accepted tokens expected of them.

    A row's place is that of its acceptance and of how many tokens it has (`_place`).
    """

    def __init__(self, pending: int) -> None:
        """Tabulate drafts of which `pending` tokens will be known before any is verified."""
        levels = (np.arange(LEVELS)[:, None] + 0.5) / LEVELS
        # (levels, tokens) probabilities that so many tokens are all accepted; their sums
        chances = levels ** np.arange(1, 2 * MOST_DRAFTS + 1)
        gains = np.pad(np.cumsum(chances, axis=1), ((0, 0), (1, 0)))
        # (thresholds, levels) longest drafts; (thresholds, levels, sizes) those there is room for
        longest = np.array([(chances >= least).sum(axis=1) for least in THRESHOLDS])
        room = np.maximum(np.arange(SIZES) - pending, 0)
        lengths = np.minimum(np.maximum(longest - pending, 0)[:, :, None], room)
        at = np.arange(LEVELS)[:, None]
        gained = gains[at, lengths + pending] - gains[at, pending]
        # (lengths and then gains by threshold, places)
        self.both: npt.NDArray[np.float64] = np.concatenate((lengths, gained)).reshape(
            2 * COUNT, -1
        )
        self.lengths: list[list[int]] = lengths.reshape(COUNT, -1).tolist()


def _place(probability: float, size: int) -> int:
    return int(probability * LEVELS) * SIZES + (size if size < SIZES else MOST_DRAFTS)
