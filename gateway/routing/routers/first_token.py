"""The default router: least predicted time to the first token, with caches that fill evenly.

    prompt tokens queued on the replica x its seconds per token
  + tokens that it has in slower tiers x their seconds per token
  + tokens that it fetches from another replica x the link's seconds per token, if that is faster
  + all other tokens of the prompt x its seconds per token

A replica has the blocks that its engine reports (`index`). The replica is expected to have the
blocks of prompts that were sent to it just now (`expected`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from engine.link.cache_events import CacheEvents
from engine.link.event_messages import Reused, Timing
from gateway.routing.known.index import NOTHING, CacheIndex, FoundBlocks
from gateway.routing.known.loads import Loads
from gateway.routing.prompt import Prompt, RoutingRequest, prompt_of
from gateway.routing.router import NO_SOURCES, RoutingChoice, Sources
from gateway.routing.routers.choose import Balance, Candidate, choose_replica
from gateway.routing.routers.fetching import ChosenFetch, FetchChooser, FetchLimits, Lacking, Offer


class FirstTokenRouter:
    """A `Router` that compares times to the first token. Belongs to one event loop."""

    def __init__(
        self,
        clock: Callable[[], float],
        balance: Balance | None = None,
        fetches: FetchLimits | None = None,
    ) -> None:
        self._clock = clock
        self._balance = balance or Balance()
        self._fetching = FetchChooser(fetches or FetchLimits())
        self._index = CacheIndex()
        self._loads = Loads()
        self._last: tuple[RoutingRequest, Prompt] | None = None

    def choose(
        self, request: RoutingRequest, ready: Sequence[str], sources: Sources = NO_SOURCES
    ) -> RoutingChoice:
        prompt = self._prompt(request)
        looked_at = dict.fromkeys((*ready, *sources)) if sources else ready
        found = self._index.find(prompt.keys, looked_at)
        load_s = partial(self._load_s, prompt, found)
        offers: Sequence[Offer] = ()
        if sources:
            offers = self._fetching.offers(prompt, found, sources, self._loads, load_s)
        lacking = self._lacking(prompt, ready, found)
        fetches = self._fetching.chosen(lacking, offers, prompt.namespace, self._clock())
        candidates = _candidates(lacking, found, fetches)
        cache_tokens = self._cache_tokens(prompt, ready)
        chosen = choose_replica([*candidates.values()], cache_tokens, self._balance, load_s)
        return self._choice(candidates[chosen], fetches.get(chosen), load_s(chosen))

    def sent(self, replica: str, request: RoutingRequest) -> None:
        prompt = self._prompt(request)
        here = self._index.find(prompt.keys, [replica]).get(replica, NOTHING)
        expected = self._loads.of(replica).expected.blocks(prompt.marks())
        cached = max(here.blocks, expected)
        self._loads.sent(replica, request.request_id, prompt, cached, request.source)

    def began(
        self, replica: str, request_id: str, reused: Reused | None, timing: Timing | None
    ) -> None:
        self._loads.began(replica, request_id, reused, timing, self._clock())

    def ended(self, replica: str, request_id: str) -> None:
        self._loads.ended(replica, request_id)

    def heard(self, replica: str, events: CacheEvents) -> None:
        self._index.apply(replica, events)

    def gone(self, replica: str) -> None:
        self._index.forget(replica)
        self._loads.forget(replica)

    def known_blocks(self, replica: str) -> int:
        return self._index.blocks(replica)

    def _prompt(self, request: RoutingRequest) -> Prompt:
        """Return the request's prompt, made once for consecutive calls."""
        if self._last is not None:
            last, prompt = self._last
            if (
                last.tokens == request.tokens
                and last.block_keys is request.block_keys
                and last.namespace == request.namespace
                and last.use_cache == request.use_cache
            ):
                return prompt  # the prompt is the same even if the request's id or source differs
        self._last = request, prompt_of(request)
        return self._last[1]

    def _lacking(
        self, prompt: Prompt, ready: Sequence[str], found: Mapping[str, FoundBlocks]
    ) -> list[Lacking]:
        """List the tokens that each replica must compute or fetch, given the found blocks."""
        load_of, lacking = self._loads.of, list[Lacking]()
        for replica in ready:
            load, here = load_of(replica), found.get(replica)
            cached = 0 if here is None else here.blocks
            if load.queued:
                cached = max(cached, load.expected.blocks(prompt.marks()))
            uncached = prompt.uncached(cached) if cached else prompt.tokens
            lacking.append((replica, load, uncached))
        return lacking

    def _cache_tokens(self, prompt: Prompt, ready: Sequence[str]) -> float:
        blocks = sum(map(self._index.blocks, ready))
        held = prompt.tokens_of(blocks) / len(ready) if prompt.blocks else 0.0
        return max(held, self._balance.least_prompts * prompt.tokens)

    def _load_s(self, prompt: Prompt, found: Mapping[str, FoundBlocks], replica: str) -> float:
        here, rates = found.get(replica, NOTHING), self._loads.of(replica).rates
        if not here.is_lower:
            return 0.0
        host, disk = self._index.lower(replica, prompt.keys, here.blocks)
        load_s = prompt.tokens_of(host) * rates.host.per_token
        return load_s + prompt.tokens_of(disk) * rates.disk.per_token

    def _choice(self, chosen: Candidate, fetch: ChosenFetch | None, load_s: float) -> RoutingChoice:
        computes = round(chosen.compute_s / self._loads.of(chosen.replica).rates.compute.per_token)
        source = None if fetch is None else fetch.source
        return RoutingChoice(chosen.replica, source, computes, chosen.first_token_s + load_s)


def _candidates(
    lacking: Sequence[Lacking], found: Mapping[str, FoundBlocks], fetches: Mapping[str, ChosenFetch]
) -> dict[str, Candidate]:
    candidates: dict[str, Candidate] = {}
    for replica, load, uncached in lacking:
        per_token, copied_s = load.rates.compute.per_token, 0.0
        compute = uncached * per_token
        first_token = load.queued * per_token
        if (fetch := fetches.get(replica)) is not None:
            copied_s = fetch.tokens * per_token
            compute -= copied_s
            first_token += fetch.seconds
        loads = (here := found.get(replica)) is not None and here.is_lower
        candidates[replica] = Candidate(
            replica, first_token + compute, compute, load.running, load.given, copied_s, loads
        )
    return candidates
