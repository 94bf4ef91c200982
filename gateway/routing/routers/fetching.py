"""The choice whether a replica fetches a prompt's first blocks, and from which replica.

    seconds to set up + the seconds in which the source loads the blocks from its slower tiers
           + tokens x seconds per token on the link x (1 + fetches under way from the source)

is compared with the time to compute the same tokens. The fetch must take less by a margin,
since both times are predicted, and since fetched blocks take room in two caches from then on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import msgspec

from engine.link.address import is_tcp
from engine.link.messages import FetchSource
from gateway.routing.known.index import FoundBlocks
from gateway.routing.known.loads import Loads, ReplicaLoad
from gateway.routing.prompt import Prompt
from gateway.routing.router import Sources

Lacking: TypeAlias = tuple[str, ReplicaLoad, int]
"""A replica's name, its load, and the tokens of a prompt that it has to compute or fetch."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """The limits within which a fetch pays."""

    setup_s: float = 0.003  # seconds from the start of a fetch to its first byte
    margin: float = 1.25  # minimum time of computing, as a multiple of the time of the fetch
    # minimum number of tokens to fetch; fewer tokens fit into a step that runs anyway
    least_tokens: int = 256


class Offer(NamedTuple):
    """A replica that offers the first blocks of a prompt."""

    replica: str
    source: FetchSource
    is_over_tcp: bool
    uncached: int
    begins_s: float
    shared_by: int  # number of fetches from this replica, the new fetch included


class ChosenFetch(msgspec.Struct, frozen=True, gc=False):
    """The chosen fetch and its predicted seconds."""

    source: FetchSource
    tokens: int
    seconds: float


class FetchChooser:
    """The choice between fetching and computing."""

    def __init__(self, limits: FetchLimits) -> None:
        self._limits = limits

    def offers(
        self,
        prompt: Prompt,
        found: Mapping[str, FoundBlocks],
        sources: Sources,
        loads: Loads,
        load_s: Callable[[str], float],
    ) -> Sequence[Offer]:
        """Return the two replicas with most of the prompt, or among equals with fewest fetches.

        `found` has the part of the prompt that each replica has. `load_s` returns the seconds in
        which a replica loads the blocks of this part from its slower tiers.
        """
        blocks = {one: here.blocks for one, here in found.items() if one in sources}
        chosen = list[str]()
        for most in sorted(set(blocks.values()))[:-3:-1]:
            best = [one for one, count in blocks.items() if count == most]
            best.sort(key=lambda one: loads.fetches_from(sources[one]))
            chosen += best[: 2 - len(chosen)]
        return [
            self._offer(prompt, one, found[one].blocks, sources[one], loads, load_s(one))
            for one in chosen
        ]

    def chosen(
        self, lacking: Sequence[Lacking], offers: Sequence[Offer], namespace: bytes, now: float
    ) -> dict[str, ChosenFetch]:
        """Choose the fetches of replicas, by name. Other replicas compute the missing tokens.

        `namespace` is the prompt's own namespace, and `now` is monotonic seconds.
        """
        fetches: dict[str, ChosenFetch] = {}
        if not offers:
            return fetches
        first, least, margin = offers[0], self._limits.least_tokens, self._limits.margin
        for replica, load, uncached in lacking:
            offer = offers[-1] if replica == first.replica else first
            _, source, is_over_tcp, left, begins_s, shared_by = offer
            tokens, rates = uncached - left, load.rates
            if tokens < least:
                continue
            seconds = tokens * rates.fetch[is_over_tcp].per_token * shared_by + begins_s
            if seconds * margin > tokens * rates.compute.per_token:
                continue
            if rates.may_fetch(namespace, now):
                fetches[replica] = ChosenFetch(source, tokens, seconds)
        return fetches

    def _offer(
        self, prompt: Prompt, replica: str, blocks: int, address: str, loads: Loads, load_s: float
    ) -> Offer:
        return Offer(
            replica=replica,
            source=FetchSource(address, prompt.tokens_of(blocks)),
            is_over_tcp=is_tcp(address),
            uncached=prompt.uncached(blocks),
            begins_s=self._limits.setup_s + load_s,
            shared_by=1 + loads.fetches_from(address),
        )
