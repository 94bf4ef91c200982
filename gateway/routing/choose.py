"""The choice among replicas, as a pure function of their loads and caches.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Balance:
    """The bounds on imbalance among replicas."""

    spread: float = 1.5  # the most running requests of a replica, as a multiple of the mean
    slack: int = 4  # running requests more than that, so that small numbers are not spread
    others: float = 0.75  # cost of computing to other requests, as a multiple of its seconds
    ahead: float = 4.0  # computing's price factor, per cache size computed beyond others
    least_prompts: int = 16  # prompts that an empty cache is taken to hold
    copies: float = 0.3  # the price of fetched tokens, as a share of computing them
    alike: float = 0.02  # share of the time to the first token that counts as no difference
    alike_s: float = 0.002  # seconds that count as no difference


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One replica, for one request. It is a Struct since one is made for each replica."""

    replica: str
    first_token_s: float  # predicted seconds to the first token, without loads
    compute_s: float  # the part of it that computes the request's own tokens
    running: int  # requests that were sent to the replica and are not over
    given: int  # prompt tokens that the replica had to compute or fetch so far
    copied_s: float = 0.0  # the seconds that computing the fetched tokens would take
    loads: bool = False  # whether it loads blocks from slower tiers


def choose_replica(
    candidates: Sequence[Candidate],
    cache_tokens: float,
    balance: Balance,
    load_s: Callable[[str], float],
) -> str:
    """Choose a replica by name; the order of equal candidates does not matter.

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
    """Select the replicas about as cheap as the cheapest, loads included, not in `prices`."""
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
    """Return the highest price that counts as equal to this one; all wait for `wait_s` or more.

    What all wait is no difference: a part of a long queue may be more than a prefix is worth.
    """
    return price + (price - wait_s) * balance.alike + balance.alike_s
