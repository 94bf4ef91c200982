"""The prediction of step times, learned from measured steps.

    seconds = cost of rows + cost of the keys that decode rows read
              + cost of pairs: each token of a prompt with each earlier key

The cost of rows is read from a curve with a point for each captured size. Steps without a captured
graph have a separate curve. After each step, the error of its prediction is divided among the terms
in proportion to their size. The first correction removes the full error, and later corrections a
part. A step without a captured graph takes at least as long as the host needs to launch it. A rate
that has not been measured is derived from the nearest measured rate.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from engine.scheduling.scheduled_rows import ScheduledRow
from engine.step import DECODE, VERIFY, Row
from engine.step_sizes import MOST_NEW, SHARING_NEW_TOKENS, new_tokens, padded, places_for

ROWS = (1, 64, 128, 256, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 3072, 4096, 8192, 16384)
# Numbers of prompt tokens that are too large for captured graphs.
TOO_LARGE = (1536, 2048, 2560, 3072, 4096, 6144)
# Numbers of prompt tokens for steps without a captured graph.
NOT_CAPTURED = (16, 32, 64, 128, 256, 384, 512, 768, 1024)
LARGE = 8192  # number of rows of a large step, whose time is bound by arithmetic

# The first estimate of the cost of reading the weights, as a number of rows of a large step.
WEIGHTS = 220.0
CPU_WEIGHTS = 16.0
KEY = 1 / 600
PAIR = 1 / 15_000
# The indices of the rates: two curves for rows, two rates for keys, one rate for pairs.
_OTHERS = len(ROWS)
_KEYS = 2 * len(ROWS)
_PAIRS = _KEYS + 2

LEARNS = 0.3  # share of the error that one correction removes, after the first corrections
MEASURED_TOKENS = 64  # minimum prompt tokens of a step from which a token's cost is learned
NUM_REMEMBERED = 8  # number of remembered ratios of actual to predicted step time

# The step's assumed share of the seconds until the host looked, if the step ended before that.
MISSED = 7 / 8
# Captured steps after which launch times are forgotten, because a launch may have stalled.
FORGETS = 1000
HIDDEN = 1.2  # a step shorter than this multiple of its launch is no measure of the device
SHORTEST_CONTEXT = 256  # shortest context in tokens whose speed is reported
LATE = 0.005  # share of gaps that exceed the predicted seconds times `late_ratio`
LATE_STEP = 0.03  # fraction by which a late step raises `late_ratio`
MOST_LATE = 2.0


class StepShape(NamedTuple):
    """The sizes that determine a step's time."""

    decodes: int = 0
    keys: int = 0
    new: int = 0  # number of prompt tokens
    pairs: float = 0.0  # number of pairs of a prompt token and an earlier key

    @classmethod
    def of(cls, rows: Iterable[Row | ScheduledRow]) -> StepShape:
        """Return the shape of a step of these rows."""
        decodes = keys = new = 0
        pairs = 0.0
        for row in rows:
            if row.kind is DECODE or row.kind is VERIFY:
                decodes += row.num_new  # a VERIFY row reads its keys only once for all its tokens
                keys += row.end
            else:
                new += row.num_new
                pairs += row.num_new * (row.start + row.num_new / 2)
        return cls(decodes, keys, new, pairs)

    @classmethod
    def prompt(cls, start: int, end: int) -> StepShape:
        """Return the shape of a step that computes only the prompt tokens [start, end)."""
        return cls(0, 0, end - start, (end - start) * (start + end) / 2)


class StepTimes:
    """The predicted seconds of an engine's steps. Used by one thread only."""

    def __init__(self, most_captured: int = MOST_NEW, weights: float = WEIGHTS) -> None:
        """Predict steps of which those with up to `most_captured` prompt tokens are captured.

        `weights` is a first estimate of a step's fixed cost, as a number of rows of a large step.
        """
        self.is_measured = False
        # The ratio of a gap to its step's predicted seconds that only few gaps exceed.
        self.late_ratio = 1.0
        self._most_captured = most_captured
        self._weights = weights
        self._rates = [0.0] * (_PAIRS + 1)
        self._met = Counter[int]()
        self._ratios: deque[float] = deque(maxlen=NUM_REMEMBERED)
        self._longest = SHORTEST_CONTEXT
        self._launches: deque[float] = deque(maxlen=NUM_REMEMBERED)
        self._captured = 0

    def settled(self, shape: StepShape, seconds: float) -> None:
        """Learn that a step of this shape took `seconds`."""
        if seconds <= 0.0 or self._is_hidden(shape, seconds):
            return
        terms = self._terms(shape)
        if not self._met:
            self._rates = [seconds / sum(units for _, units in terms)] * len(self._rates)
        predicted = sum(units * self._rates[place] for place, units in terms)
        self._ratios.append(seconds / predicted)
        self._correct(terms, seconds - predicted)
        for place, _ in terms:
            self._meet(place)
        if shape.new >= MEASURED_TOKENS:
            self.is_measured = True
            self._longest = max(self._longest, int(shape.pairs / shape.new))

    def missed(self, shape: StepShape, most: float) -> None:
        """Learn from a step that took at most `most` seconds and ended before the host looked."""
        predicted = self.seconds(shape)
        if predicted > most:
            self.settled(shape, most)
        elif predicted:
            self._ratios.append(min(MISSED * most / predicted, 1.0))

    def gap(self, shape: StepShape, seconds: float) -> None:
        """Learn from the gap between tokens, in seconds, that a mixed step caused.

        The gap includes the host's work between two steps. `late_ratio` tracks a high quantile of
        the ratio of gap to prediction, by online gradient descent on the pinball loss. The method
        is adaptive conformal inference (Gibbs and Candes, 2021).
        """
        if not (shape.decodes and shape.new):
            return
        predicted = self.seconds(shape)
        if not predicted:
            return
        is_late = seconds > predicted * self.late_ratio
        moved = self.late_ratio * (1 + LATE_STEP * ((1 if is_late else 0) - LATE))
        self.late_ratio = min(max(moved, 1.0), MOST_LATE)

    def launched(self, shape: StepShape, seconds: float) -> None:
        """Learn the seconds that the host took to launch a step of this shape."""
        if not self._is_captured(shape.new):
            self._captured = 0
            self._launches.append(seconds)
            return
        self._captured += 1
        # Otherwise sizes that once seemed slow would never be measured again.
        if self._captured >= FORGETS:
            self._launches.clear()

    def launch_seconds(self, new: int) -> float:
        """Return the host's seconds to launch a step of `new` prompt tokens: 0 with a graph."""
        return 0.0 if self._is_captured(new) else min(self._launches, default=0.0)

    def _is_captured(self, new: int) -> bool:
        return not 0 < self._most_captured < new

    def seconds(self, shape: StepShape) -> float:
        """Predict the seconds of a step of this shape, or 0 without measurements.

        A step without a captured graph takes at least as long as its launch.
        """
        device = self._device_seconds(shape)
        return max(device, self.launch_seconds(shape.new)) if device else device

    def decodes(self, rows: int) -> float:
        """Predict the seconds of a step of `rows` decodes with few keys, or 0 if unmeasured."""
        return self.seconds(StepShape(rows))

    def least(self, shape: StepShape) -> float | None:
        """Predict the shortest seconds that a step may take. Return None after too few steps."""
        if len(self._ratios) < NUM_REMEMBERED:
            return None
        return min(self._ratios) * self.seconds(shape)

    def sizes(self, decodes: int, most: int) -> list[int]:
        """Return the numbers of prompt tokens, up to `most`, that a step with `decodes` may have.

        They are in ascending order. Of the captured sizes, only those without padding are returned,
        because a padded step takes as long as a full one.
        """
        captured = new_tokens(places_for(decodes)) if self._most_captured else NOT_CAPTURED
        chosen = [size for size in captured if size <= (self._most_captured or size)]
        return [*(size for size in (*chosen, *TOO_LARGE) if size < most), most]

    def prefill(self, start: int, end: int) -> float:
        """Predict the seconds to compute prompt tokens [start, end) in steps without other rows."""
        firsts = range(start, end, LARGE)
        return sum(self.seconds(StepShape.prompt(at, min(at + LARGE, end))) for at in firsts)

    def tokens_per_second(self) -> dict[int, float]:
        """Return the speed of large steps in tokens per second, by context length: 256, 512, ..."""
        rates, context = dict[int, float](), SHORTEST_CONTEXT
        while self.is_measured and context < 2 * self._longest:
            rates[context] = LARGE / self.seconds(
                StepShape(new=LARGE, pairs=LARGE * float(context))
            )
            context *= 2
        return rates

    def _device_seconds(self, shape: StepShape) -> float:
        return sum(units * self._rates[place] for place, units in self._terms(shape))

    def _is_hidden(self, shape: StepShape, seconds: float) -> bool:
        """Return whether the launch took about as long as the step, and so hid the step's time."""
        return self._device_seconds(shape) < seconds < HIDDEN * self.launch_seconds(shape.new)

    def _correct(self, terms: list[tuple[int, float]], error: float) -> None:
        """Divide an error of the prediction among its `terms`, in proportion to their size.

        Of the curve's two points, the nearer one is corrected more. Otherwise a point with a cost
        that is too low would keep it.
        """
        scales = self._scales(terms)
        squares = sum((units * scale) ** 2 for (_, units), scale in zip(terms, scales, strict=True))
        for (place, units), scale in zip(terms, scales, strict=True):
            learns, rate = max(1 / (self._met[place] + 1), LEARNS), self._rates[place]
            corrected = rate + learns * error * units * scale**2 / squares
            self._rates[place] = max(corrected, rate / 10)

    def _scales(self, terms: list[tuple[int, float]]) -> list[float]:
        rows = [(units, self._rates[place]) for place, units in terms if place < _KEYS]
        mean = sum(units * rate for units, rate in rows) / sum(units for units, _ in rows)
        return [mean if place < _KEYS else self._rates[place] for place, _ in terms]

    def _meet(self, place: int) -> None:
        self._met[place] += 1
        if self._met[place] > 1:
            return
        for alike in (range(_KEYS), range(_KEYS, _PAIRS)):
            met = [one for one in alike if one in self._met]
            for other in alike if met else ():
                self._rates[other] = self._rates[min(met, key=partial(_distance, other))]

    def _terms(self, shape: StepShape) -> list[tuple[int, float]]:
        decodes, keys, new, pairs = shape
        is_captured = 0 < new <= self._most_captured
        rows = padded(decodes, new) if is_captured else decodes + new
        above = min(max(bisect_left(ROWS, rows), 1), len(ROWS) - 1)
        low, high = ROWS[above - 1], ROWS[above]
        part = (rows - low) / (high - low)
        above += 0 if is_captured or not new else _OTHERS
        terms = [(above, part * (self._weights + high))] if part > 0 else []
        if part < 1:
            terms.append((above - 1, (1 - part) * (self._weights + low)))
        if keys:  # keys take other times, because only some captured graphs share reads of a prefix
            terms.append((_KEYS + (is_captured and new > SHARING_NEW_TOKENS[-1]), KEY * keys))
        if pairs:
            terms.append((_PAIRS, PAIR * pairs))
        return terms


def _distance(point: int, other: int) -> tuple[bool, int]:
    return (point < _OTHERS) != (other < _OTHERS), abs(point % _OTHERS - other % _OTHERS)
