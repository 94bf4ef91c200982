"""The search for the highest rate that keeps an SLO: doubling, then bisection.

This module decides which rate is tried next, and sends nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, sqrt

import msgspec

from cli.load.report import LoadReport

CLOSE = 1.05  # the search ends when the bounds on the rate are within this factor
LEAST_REQUESTS = 10
LOWEST, HIGHEST = 0.001, 1e6  # bounds on the rate, in requests a second


class RateProbe(msgspec.Struct, frozen=True, kw_only=True):
    """A rate that was tried, and the result. A probe ends once it can no longer meet the SLO."""

    rate: float  # arrivals a second
    requests: int
    ended: int
    met: int
    attained: bool | None  # whether the rate kept the SLO; None: time ran out first
    report: LoadReport | None


class FoundRate(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a rate search, with rates in requests a second."""

    share: float
    highest: float | None
    lowest_missed: float | None
    seconds: float
    probes: list[RateProbe]


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """The plan for a rate to try: requests, permitted misses of the SLO, and time limit."""

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
    """Try rates from `start` on, until the highest is known within 5 % or `seconds` have passed."""
    began, probes = clock(), list[RateProbe]()
    rate = next_rate(probes, start)
    while rate is not None and (left := began + seconds - clock()) > 0:
        requests = max(round(rate * seconds / 10), LEAST_REQUESTS)
        # minus 1e-9, since 0.55 * 100 is slightly above 55
        most_missed = requests - ceil(share * requests - 1e-9)
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
    """Return the next rate to try, or None if the search is over."""
    met, missed = _highest(probes), _lowest_missed(probes)
    if met is None and missed is None:
        return start
    if missed is None:
        return _within(2 * met) if met is not None else None
    if met is None:
        return _within(missed / 2)
    return sqrt(met * missed) if missed / met > CLOSE else None


def _highest(probes: Sequence[RateProbe]) -> float | None:
    """Return the highest rate that met the SLO, below every rate that missed the SLO."""
    missed = _lowest_missed(probes)
    rates = (one.rate for one in probes if one.attained)
    return max((rate for rate in rates if missed is None or rate < missed), default=None)


def _lowest_missed(probes: Sequence[RateProbe]) -> float | None:
    return min((one.rate for one in probes if one.attained is False), default=None)


def _within(rate: float) -> float | None:
    return rate if LOWEST <= rate <= HIGHEST else None
