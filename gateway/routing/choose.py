"""The choice among replicas, as a function of what is known of each.

    1   those that run far more requests than the others are left out: a prefix that all ask for
        would else draw all of them to the one replica that has it
    2   each is as dear as its first token is late; dearer for what would be computed there, since
        others wait for that; and the more so the more it has computed beyond the others. What
        would be fetched there is dearer likewise, since it pushes out other blocks
    3   among those that are about as dear, the one with the fewest requests

So requests that begin alike wait for the first of them, rather than that several replicas compute
the same at the same time. And new conversations do not follow the few blocks that all of them have
in common to the replicas that have these, and push older ones out there while other caches stand
half empty. What is computed has to be cached: when replicas compute alike, what is evicted next is
about as old in all of them, as in one large cache.

Knows: names and numbers. Does not know: where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Balance:
    """The bounds on how uneven replicas may be."""

    spread: float = 1.5  # times the mean of running requests that a replica may have
    slack: int = 4  # requests more, so that few are not spread for their number's sake
    others: float = 0.75  # times what it takes: that is what computing costs other requests
    ahead: float = 4.0  # times dearer to compute, where a cache's size more was computed
    least_prompts: int = 16  # that a cache is taken to hold while it is empty
    copies: float = 0.3  # likewise for what is fetched: of what computing it would take
    alike: float = 0.02  # of the time to the first token: less is no difference
    alike_s: float = 0.002  # likewise


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One replica, for one request. One is made for each replica, so it is a Struct."""

    replica: str
    first_token_s: float  # predicted, from now on; without what it loads
    compute_s: float  # of it, what the request's own tokens take
    running: int  # requests that were sent and are not over
    given: int  # prompt tokens that it had to compute or fetch so far
    copied_s: float = 0.0  # what it would take to compute what is fetched
    loads: bool = False  # something from slower tiers


def choose_replica(
    candidates: Sequence[Candidate],
    cache_tokens: float,
    balance: Balance,
    load_s: Callable[[str], float],
) -> str:
    """Choose a replica, by name; equal candidates give the same answer, in whichever order.

    `cache_tokens` is about what a replica's cache holds. `load_s`, seconds, is asked only of those
    that load and would be chosen if that took no time: it makes each dearer, and none cheaper.
    """
    running = [one.running for one in candidates]
    most = balance.slack + balance.spread * sum(running) / len(running)
    least = min([one.given for one in candidates])
    if max(running) > most:
        candidates = [one for one in candidates if one.running <= most]
    dearer, others, copies = balance.ahead / max(cache_tokens, 1.0), balance.others, balance.copies
    prices = [
        one.first_token_s
        + one.compute_s * (others + (ahead := dearer * (one.given - least)))
        + one.copied_s * (copies + ahead)
        for one in candidates
    ]
    alike = _alike(candidates, prices, balance, load_s)
    return min(alike, key=lambda one: (one.running, one.given, one.replica)).replica


def _alike(
    candidates: Sequence[Candidate],
    prices: Sequence[float],
    balance: Balance,
    load_s: Callable[[str], float],
) -> list[Candidate]:
    """Select those about as cheap as the cheapest, with loads; `prices` are without."""
    least = min(prices)
    wait_s = min([one.first_token_s - one.compute_s for one in candidates])
    cheapest = candidates[prices.index(least)]
    limit = _limit(least + (load_s(cheapest.replica) if cheapest.loads else 0.0), wait_s, balance)
    priced = [
        (price + load_s(one.replica) if one.loads else price, one)
        for price, one in zip(prices, candidates, strict=True)
        if price <= limit
    ]
    limit = _limit(min([price for price, _ in priced]), wait_s, balance)
    return [one for price, one in priced if price <= limit]


def _limit(price: float, wait_s: float, balance: Balance) -> float:
    """Return the highest price that is about as low as this one; all wait for `wait_s` or more.

    What all wait is no difference: a part of a long queue may be more than a prefix is worth.
    """
    return price + (price - wait_s) * balance.alike + balance.alike_s
