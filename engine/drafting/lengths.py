"""The choice of drafts' lengths that yields the most tokens per second.

A drafted token costs about as much as a further row of one token. The probability that it is
accepted is the product of its own chance and the chances of the tokens before it (`acceptance`). A
step verifies the drafted tokens whose probability reaches a threshold, and the threshold is chosen
to yield the most tokens per second. Where the drafted tokens would not fit the step, the longest
drafts are cut to one length. A step with drafts costs extra time, because it must wait for host
work that otherwise overlaps with the step before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from engine.drafting.acceptance import MOST_DRAFTS, NUM_CURVES, curves

StepSeconds = Callable[[int], float | None]  # number of one-token rows -> seconds of the step

THRESHOLDS = (0.85, 0.7, 0.55, 0.42, 0.3, 0.2, 0.12, 0.06)
COUNT = len(THRESHOLDS)
SIZES = MOST_DRAFTS + 1
GAIN = 1.02  # minimum predicted speed-up for drafting, because predictions are inexact
UNKNOWN_ROWS = 64  # a step's assumed fixed cost in rows while its seconds are unknown
ASKED_AGAIN = 256  # number of decisions for which predicted seconds are reused


def no_seconds() -> float:
    """Return 0 seconds of extra host time for a step with drafts."""
    return 0.0


class Payoff:
    """The choice of the lengths of a step's drafts."""

    def __init__(
        self,
        step_seconds: StepSeconds,
        host_seconds: Callable[[], float] = no_seconds,
        most_rows: int = sys.maxsize,
        *,
        has_states: bool = False,
    ) -> None:
        """Choose lengths by `step_seconds`, which predicts a step's seconds from its row count.

        `host_seconds` returns the extra seconds that a step takes if it waits for the tokens of the
        step before. `most_rows` bounds the sum of a step's rows and drafted tokens. With
        `has_states`, accepted tokens cost more: they are computed again from the recurrent state
        before them.
        """
        self._step_seconds, self._host_seconds = step_seconds, host_seconds
        self._most_rows = most_rows
        self._has_states = has_states
        self._predicted: dict[int, float] = {}
        self._decisions = 0
        self._tables: dict[int, _Table] = {}

    def can_pay(self, rows: int) -> bool:
        """Return whether drafts for `rows` rows would save time if all were accepted."""
        most = min(self._most_rows // rows - 1, MOST_DRAFTS)
        sizes = {min(size, most) for size in (1, 4, MOST_DRAFTS)}
        return self._fastest(rows, ((rows * size, rows * size) for size in sizes)) is not None

    def lengths(self, rows: int, chances: Sequence[tuple[int, int]], pending: int = 0) -> list[int]:
        """Return how many tokens of each draft to verify in a step of `rows` rows.

        `chances` has, for each draft, the index of its curve of chances (`curves`) and its length.
        The first `pending` tokens of each draft will be known before the verification.
        """
        if not chances:
            return []
        self._decisions += 1
        pending = min(pending, MOST_DRAFTS)
        table = self._tables.get(pending)
        if table is None:
            table = self._tables[pending] = _Table(pending)
        places = _places(chances, MOST_DRAFTS)
        choices = table.choices(places)
        room = self._most_rows - rows
        over = next((at for at, (drafted, _) in enumerate(choices) if drafted > room), None)
        cut = places
        if over is not None:
            cut = _places(chances, pending + _longest(table.drafted(over, places), room))
            choices[over:] = table.choices(cut)[over : over + 1]
        best = self._fastest(rows, choices)
        if best is None:
            return [0] * len(chances)
        return table.drafted(best, cut if best == over else places)

    def _fastest(self, rows: int, choices: Iterable[tuple[float, float]]) -> int | None:
        """Return the index of the choice with the most tokens per second, or None if none helps.

        A choice is a pair: the number of drafted tokens, and the expected number of accepted
        tokens.
        """
        plain, predicted = self._seconds(rows), self._predicted
        waits = self._host_seconds()
        fastest, best, before = GAIN, None, 0.0
        for at, (drafted, accepted) in enumerate(choices):
            if drafted == before:
                continue
            before = drafted
            computed = rows + int(drafted) + (int(accepted) if self._has_states else 0)
            longer = predicted.get(computed) or self._seconds(computed)
            if plain is None or longer is None:
                cost = (UNKNOWN_ROWS + computed) / (UNKNOWN_ROWS + rows)
            else:
                cost = (longer + waits) / plain
            speed = (rows + accepted) / rows / cost
            if speed > fastest:
                fastest, best = speed, at
        return best

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


def _longest(lengths: list[int], room: int) -> int:
    """Return the length to which longer drafts are cut, so that all together fit `room`."""
    left = len(lengths)
    for length in sorted(lengths):
        if length * left > room:
            break
        room -= length
        left -= 1
    return room // max(left, 1)


def _places(chances: Sequence[tuple[int, int]], most: int) -> list[int]:
    """Return the row of each draft in a `_Table`, after drafts are cut to `most` tokens."""
    return [curve * SIZES + (size if size < most else most) for curve, size in chances]


class _Table:
    """A table of draft lengths and of expected accepted tokens, by threshold.

    A draft is looked up by its curve of chances and its size.
    """

    def __init__(self, pending: int) -> None:
        """Tabulate drafts whose first `pending` tokens will be known before any is verified."""
        # `chances` (curves, tokens) has the chance that a token and all tokens before it are
        # accepted. `gains` has the cumulative sums along the tokens.
        chances = np.cumprod(curves(2 * MOST_DRAFTS), axis=1)
        gains = np.pad(np.cumsum(chances, axis=1), ((0, 0), (1, 0)))
        # Shapes: `longest` (thresholds, curves), `lengths` (thresholds, curves, sizes). A length is
        # at most the draft's size.
        longest = np.array([(chances >= least).sum(axis=1) for least in THRESHOLDS])
        room = np.maximum(np.arange(SIZES) - pending, 0)
        lengths = np.minimum(np.maximum(longest - pending, 0)[:, :, None], room)
        at = np.arange(NUM_CURVES)[:, None]
        gained = gains[at, lengths + pending] - gains[at, pending]
        # After the transposition, each row is for one curve and size. Its columns are the lengths
        # by threshold, then the gains by threshold.
        both: npt.NDArray[np.float64] = np.concatenate((lengths, gained)).reshape(2 * COUNT, -1)
        self._both = np.ascontiguousarray(both.T)
        self._lengths: list[list[int]] = lengths.reshape(COUNT, -1).tolist()

    def choices(self, places: list[int]) -> list[tuple[float, float]]:
        """Return the numbers of drafted and of expected accepted tokens, by threshold."""
        sums: list[float] = np.add.reduce(self._both.take(places, axis=0)).tolist()
        return list(zip(sums[:COUNT], sums[COUNT:], strict=True))

    def drafted(self, at: int, places: list[int]) -> list[int]:
        """Return the length of each draft with threshold number `at`."""
        lengths = self._lengths[at]
        return [lengths[place] for place in places]
