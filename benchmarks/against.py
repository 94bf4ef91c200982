"""Two checkouts measured by turns on one machine, and the ratios of their numbers.

Whoever comes first changes each round, so that what warms up or slows down meets both. A number's
name tells which way it is better: seconds, bytes and the like are to be small, rates large. Numbers
of other names describe a measurement, and with its name they tell which one it is.

Knows: records of benchmarks. Does not know: how a part is run (`everything`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

LOST = 0.98  # a smaller ratio is a loss
_RATES = ("per_s", "tflops", "gb_s", "hit_rate")
_COSTS = ("_s", "_ms", "_us", "_ns", "_bytes", "_mib", "_gib")
_UNITS = ("s", "ms", "us", "ns")  # names that are units alone

Key = tuple[str, ...]  # part, record, number
Records = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class NumberComparison:
    """A number of this checkout and of the other: medians of all rounds, and their spreads.

    `ratio` is above 1 where this one is better. A spread is the range of a checkout's values as a
    share of their median.
    """

    key: Key
    this: float
    other: float
    ratio: float
    spread: float
    overlaps: bool  # whether some value of the one lies among those of the other

    @property
    def is_lost(self) -> bool:
        """True if this checkout is worse by more than 2 %, and not only by chance."""
        return self.ratio < LOST and not self.is_unclear

    @property
    def is_unclear(self) -> bool:
        """True if it seems worse, but by less than values differ: more rounds would tell."""
        return self.ratio < LOST and self.overlaps and self.spread > 1 - self.ratio


def by_turns(
    rounds: int, run: Callable[[bool], Records]
) -> tuple[list[list[Mapping[str, Any]]], list[list[Mapping[str, Any]]]]:
    """Run this checkout (True) and the other in turn; return the records of each round."""
    this: list[list[Mapping[str, Any]]] = []
    other: list[list[Mapping[str, Any]]] = []
    for number in range(rounds):
        for is_this in (True, False) if number % 2 == 0 else (False, True):
            (this if is_this else other).append(list(run(is_this)))
    return this, other


def compared(this: Iterable[Records], other: Iterable[Records]) -> list[NumberComparison]:
    """Compare the numbers that both checkouts have, in the order of this one's."""
    own, theirs = _values(this), _values(other)
    return [_compared(key, own[key], theirs[key]) for key in own if key in theirs]


def one_sided(this: Iterable[Records], other: Iterable[Records]) -> list[Key]:
    """Return the numbers that only one of the two has, which are compared with nothing."""
    own, theirs = _values(this), _values(other)
    return [key for key in {**own, **theirs} if key not in own or key not in theirs]


def is_rate(name: str) -> bool | None:
    """Return whether a number is better large; None: its name does not tell."""
    if name.endswith(_RATES):
        return True
    return False if name in _UNITS or name.endswith(_COSTS) else None


def _compared(key: Key, this: list[float], other: list[float]) -> NumberComparison:
    ours, theirs = median(this), median(other)
    better, worse = (ours, theirs) if is_rate(key[-1]) else (theirs, ours)
    ratio = better / worse if worse else (1.0 if better == worse else float("inf"))
    spread = max(_spread(this), _spread(other))
    overlaps = min(this) <= max(other) and min(other) <= max(this)
    return NumberComparison(key, ours, theirs, ratio, spread, overlaps)


def _spread(values: list[float]) -> float:
    middle = abs(median(values))
    return (max(values) - min(values)) / middle if middle else 0.0


def _values(rounds: Iterable[Records]) -> dict[Key, list[float]]:
    values: dict[Key, list[float]] = {}
    for records in rounds:
        for key, value in (pair for record in records for pair in _numbers(record)):
            values.setdefault(key, []).append(value)
    return values


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[Key, float]]:
    """Yield the numbers of a record that are compared, after what tells which record it is."""
    measured = {name for name, value in record.items() if _is_measured(name, value)}
    told = [str(value) for name, value in record.items() if name not in measured]
    for name in record:
        if name in measured:
            yield (*told, name), float(record[name])


def _is_measured(name: str, value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and is_rate(name) is not None
