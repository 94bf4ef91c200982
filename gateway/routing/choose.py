"""The choice among replicas, as a function of what is known of each.

    1   those that run far more requests than the others are left out: a prefix that all ask for
        would else draw all of them to the one replica that has it
    2   the soonest first token, as predicted, and those that come about as soon
    3   of these the one that was given the least to compute so far, so that caches fill alike and
        what is evicted next is about as old in all of them

Knows: names and numbers. Does not know: where they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Balance:
    """How even the load is kept."""

    spread: float = 1.5  # times the mean of running requests that a replica may have
    slack: int = 4  # requests more, so that few are not spread for their number's sake
    alike: float = 0.02  # of the time to the first token: less is no difference
    alike_s: float = 0.002  # likewise


class Candidate(NamedTuple):
    """One replica, for one request."""

    replica: str
    first_token_s: float  # predicted, from now on
    running: int  # requests that were sent and are not over
    given: int  # prompt tokens that it had to compute so far


def choose_replica(candidates: Sequence[Candidate], balance: Balance) -> str:
    """The replica's name. The same candidates give the same answer, in whichever order."""
    mean = sum(one.running for one in candidates) / len(candidates)
    most = balance.slack + balance.spread * mean
    allowed = [one for one in candidates if one.running <= most]
    soonest = min(one.first_token_s for one in allowed)
    latest = soonest * (1 + balance.alike) + balance.alike_s
    alike = [one for one in allowed if one.first_token_s <= latest]
    return min(alike, key=lambda one: (one.given, one.first_token_s, one.replica)).replica
