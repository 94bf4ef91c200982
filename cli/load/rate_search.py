"""The highest rate at which enough requests meet an SLO: doubling, then bisection.

Decides which rate is tried next; sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, sqrt

import msgspec

from cli.load.report import LoadReport

CLOSE = 1.05  # the highest rate that met it and the lowest that did not are one within this factor
LEAST_REQUESTS = 10  # of a rate
LOWEST, HIGHEST = 0.001, 1e6  # requests a second


class RateProbe(msgspec.Struct, frozen=True, kw_only=True):
    """One rate that was tried. A probe ends when it can no longer meet the SLO."""

    rate: float  # arrivals a second
    requests: int  # planned
    ended: int
    met: int  # of those that ended
    attained: bool | None  # None: its time was up before it was decided
    report: LoadReport | None  # of those that ended; None where none did


class FoundRate(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search; rates in requests a second."""

    share: float  # of requests that have to meet the SLO
    highest: float | None  # the highest rate that met it; None: none did
    lowest_missed: float | None  # None: none missed it
    seconds: float  # duration of the search
    probes: list[RateProbe]


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """One rate to try: how many requests, how many may miss the SLO, and how long it may take."""

    rate: float
    requests: int
    most_missed: int
    after_s: float


def find_rate(
    probe: Callable[[ProbePlan], RateProbe],
    *,
    start: float,
    share: float,
    seconds: float,
    clock: Callable[[], float],
) -> FoundRate:
    """Try rates from `start` on until the highest is known within 5 % or `seconds` are over."""
    began, probes = clock(), list[RateProbe]()
    rate = next_rate(probes, start)
    while rate is not None and (left := began + seconds - clock()) > 0:
        requests = max(round(rate * seconds / 10), LEAST_REQUESTS)
        most_missed = requests - ceil(share * requests - 1e-9)  # 0.9 * 10 is 9
        probes.append(probe(ProbePlan(rate, requests, most_missed, left)))
        if probes[-1].attained is None:
            break
        rate = next_rate(probes, start)
    return FoundRate(
        share=share,
        highest=_highest(probes),
        lowest_missed=_lowest_missed(probes),
        seconds=clock() - began,
        probes=probes,
    )


def next_rate(probes: Sequence[RateProbe], start: float) -> float | None:
    """Return the rate to try after these; None where there is nothing more to learn."""
    met, missed = _highest(probes), _lowest_missed(probes)
    if met is None and missed is None:
        return start
    if missed is None:
        return _within(2 * met) if met is not None else None
    if met is None:
        return _within(missed / 2)
    return sqrt(met * missed) if missed / met > CLOSE else None


def _highest(probes: Sequence[RateProbe]) -> float | None:
    """Return the highest rate that met it below the lowest that did not: luck above is no count."""
    missed = _lowest_missed(probes)
    rates = (one.rate for one in probes if one.attained)
    return max((rate for rate in rates if missed is None or rate < missed), default=None)


def _lowest_missed(probes: Sequence[RateProbe]) -> float | None:
    return min((one.rate for one in probes if one.attained is False), default=None)


def _within(rate: float) -> float | None:
    return rate if LOWEST <= rate <= HIGHEST else None
