"""The comparison of two checkouts, which are measured in turn on one machine.

The two checkouts take turns at running first, so that a change of the machine's speed affects both.
The name of a number shows which values are better: small values of seconds and bytes, and large
values of rates. A record's name and its other values identify the measurement.

`everything` runs the parts of the benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

LOST = 0.98  # a number below this fraction of the other checkout's number counts as a loss
_RATES = ("per_s", "tflops", "gb_s", "hit_rate")
_COSTS = ("_s", "_ms", "_us", "_ns", "_bytes", "_mib", "_gib")
_UNITS = ("s", "ms", "us", "ns")

Key = tuple[str, ...]  # names of the part, the record and the number
Records = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class NumberComparison:
    """A number measured in both checkouts: the medians of all rounds, and the spread.

    `ratio` is above 1 if this checkout is better. `spread` is the range of a checkout's values as a
    share of their median, for the checkout with the larger spread.
    """

    key: Key
    this: float
    other: float
    ratio: float
    spread: float
    overlaps: bool

    @property
    def is_lost(self) -> bool:
        """True if this checkout is worse by more than 2 %, and not only by chance."""
        return self.ratio < LOST and not self.is_unclear

    @property
    def is_unclear(self) -> bool:
        """True if this checkout is worse by less than the values' spread."""
        return self.ratio < LOST and self.overlaps and self.spread > 1 - self.ratio


def by_turns(
    rounds: int, run: Callable[[bool], Records]
) -> tuple[list[list[Mapping[str, Any]]], list[list[Mapping[str, Any]]]]:
    """Run this checkout (True) and the other one in turn, and return each round's records."""
    this: list[list[Mapping[str, Any]]] = []
    other: list[list[Mapping[str, Any]]] = []
    for number in range(rounds):
        for is_this in (True, False) if number % 2 == 0 else (False, True):
            (this if is_this else other).append(list(run(is_this)))
    return this, other


def compared(this: Iterable[Records], other: Iterable[Records]) -> list[NumberComparison]:
    """Compare the numbers that both checkouts have, in the order of this checkout."""
    own, theirs = _values(this), _values(other)
    return [_compared(key, own[key], theirs[key]) for key in own if key in theirs]


def one_sided(this: Iterable[Records], other: Iterable[Records]) -> list[Key]:
    """Return the keys of numbers that only one checkout has. These are not compared."""
    own, theirs = _values(this), _values(other)
    return [key for key in {**own, **theirs} if key not in own or key not in theirs]


def is_rate(name: str) -> bool | None:
    """Return whether a large value is better, or None if the name does not show it."""
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
    """Yield a record's numbers to compare. A key has the record's other values and the name."""
    measured = {name for name, value in record.items() if _is_measured(name, value)}
    told = [str(value) for name, value in record.items() if name not in measured]
    for name in record:
        if name in measured:
            yield (*told, name), float(record[name])


def _is_measured(name: str, value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and is_rate(name) is not None
