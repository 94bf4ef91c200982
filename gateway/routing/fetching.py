"""Whether a replica is to fetch the begin of a prompt from another one, and from which.

    set up + tokens x seconds a token by that way x (1 + fetches under way from there)

is compared with computing the same tokens. It must be less by a margin, since both are predicted,
and since what is fetched is in two caches from then on.

Knows: blocks, tokens, seconds. Does not know: what moves the bytes, or how a replica is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from engine.link.messages import FetchSource
from gateway.routing.index import Found
from gateway.routing.loads import Loads
from gateway.routing.prompt import Prompt
from gateway.routing.rates import ReplicaRates
from gateway.routing.router import Sources


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """When it pays."""

    setup_s: float = 0.003  # before the first byte
    margin: float = 1.25  # times the fetch that computing must take
    least_tokens: int = 256  # fewer are computed within a step that is taken anyway


class Offer(NamedTuple):
    """A replica that has the begin of a prompt."""

    replica: str
    address: str  # of its exchange
    blocks: int
    fetches: int  # under way from there


class Fetch(NamedTuple):
    """What is to be fetched, and how long that takes."""

    source: FetchSource
    tokens: int  # that are not computed therefore
    seconds: float


def best_offers(found: Mapping[str, Found], sources: Sources, loads: Loads) -> list[Offer]:
    """The two that have most, so that each replica has one beside itself; the idler of equals."""
    offers = [
        Offer(replica, address, found[replica].blocks, loads.fetches_from(address))
        for replica, address in sources.items()
        if replica in found
    ]
    offers.sort(key=lambda one: (-one.blocks, one.fetches, one.replica))
    return offers[:2]


class Fetching:
    """Compares fetching with computing."""

    def __init__(self, limits: FetchLimits) -> None:
        self._limits = limits

    def chosen(
        self,
        replica: str,
        rates: ReplicaRates,
        prompt: Prompt,
        cached: int,
        offers: list[Offer],
        now: float,
    ) -> Fetch | None:
        """What a replica that has `cached` blocks is to fetch; None: it computes the rest."""
        offer = next((one for one in offers if one.replica != replica), None)
        if offer is None or offer.blocks <= cached or not rates.may_fetch(now):
            return None
        limits = self._limits
        tokens = prompt.uncached(cached) - prompt.uncached(offer.blocks)
        each = rates.fetch_per_token(offer.address, now) * (1 + offer.fetches)
        seconds = limits.setup_s + tokens * each
        computed = tokens * rates.compute.per_token
        if tokens < limits.least_tokens or seconds * limits.margin > computed:
            return None
        source = FetchSource(offer.address, prompt.tokens_of(offer.blocks))
        return Fetch(source, tokens, seconds)
