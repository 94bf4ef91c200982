"""The choice among replicas, as a pure function of their loads and caches.

    1   replicas that run far more requests than the others are left out: otherwise a prefix common
        to all requests would draw them all to the one replica that has cached the prefix
    2   a replica's price is its time to the first token, plus a price for tokens to compute,
        since other requests wait meanwhile (this price grows with the tokens that the replica has
        computed beyond the others), plus a price for fetched tokens, which push out blocks
    3   among replicas of about the lowest price, the one with the fewest requests is chosen

Requests that begin alike wait for the first of them, so no two replicas compute the same prefix at
the same time. New conversations do not all go to the replicas that have their few common blocks. If
they did, they would push out older KV blocks there, while other caches are half empty. Computed
tokens take room in a cache. If all replicas compute about as much, the next evicted blocks are
about as old in each cache, and the caches together resemble one large cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Balance:
    """The limits on imbalance among replicas, and the prices of loads on them."""

    # maximum number of running requests of a replica, as a multiple of the mean
    spread: float = 1.5
    slack: int = 4  # number of requests added to this maximum, for a low mean
    # price of making other requests wait, as a multiple of the seconds of computing
    others: float = 0.75
    # Increase of a replica's price factors for each cache size of excess tokens. The excess is the
    # tokens given to the replica beyond the tokens given to the replica with the fewest.
    ahead: float = 4.0
    least_prompts: int = 16  # minimum number of prompts that an empty cache is assumed to hold
    copies: float = 0.3  # price of fetching tokens, as a share of the price of computing
    alike: float = 0.02  # ignored difference, as a share of the time to the first token
    alike_s: float = 0.002  # ignored difference in seconds


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One replica as a candidate for a request. It is a Struct, which is fast to make."""

    replica: str
    # predicted seconds to the first token, without the replica's loads from slower tiers
    first_token_s: float
    compute_s: float  # seconds of `first_token_s` in which the request's tokens are computed
    running: int  # number of requests that were sent to the replica and are not over
    given: int  # number of prompt tokens that the replica had to compute or fetch so far
    copied_s: float = 0.0  # the seconds that computing the fetched tokens would take
    loads: bool = False  # whether the replica loads blocks from slower tiers


def choose_replica(
    candidates: Sequence[Candidate],
    cache_tokens: float,
    balance: Balance,
    load_s: Callable[[str], float],
) -> str:
    """Choose a replica by name. The order of equal candidates does not matter.

    `cache_tokens` is about the number of tokens that a replica's cache holds. `load_s` returns the
    seconds for which a replica loads blocks. Loading only raises a price. `load_s` is therefore
    called only for replicas that would be chosen if loading took no time.
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
    """Return the highest price that counts as equal to `price`.

    The tolerance is a share of the price without `wait_s`, for which every replica waits. A share
    of a long wait may be more time than a cached prefix saves.
    """
    return price + (price - wait_s) * balance.alike + balance.alike_s
