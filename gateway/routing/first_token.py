"""The router that serves: the least predicted time to the first token, and caches that fill alike.

    prompt tokens that are queued there x its seconds a token
  + what it has in slower tiers x their seconds a token
  + the tokens that it has not x its seconds a token

It has what its engine says (`index`), and what was sent there just now will be there (`expected`).

Knows: how the parts go together. Does not know: which replicas are ready.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.link.cache_events import CacheEvents
from engine.link.messages import Generate, Reused, Timing
from gateway.routing.choose import Balance, Candidate, choose_replica
from gateway.routing.index import NOTHING, CacheIndex, Found
from gateway.routing.loads import Loads, ReplicaLoad
from gateway.routing.prompt import Prompt, prompt_of


class FirstTokenRouter:
    """A `Router`. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float], balance: Balance | None = None) -> None:
        """`clock`: seconds, monotonic."""
        self._clock = clock
        self._balance = balance or Balance()
        self._index = CacheIndex()
        self._loads = Loads()

    def choose(self, request: Generate, ready: Sequence[str]) -> str:
        """As `Router.choose`."""
        prompt = prompt_of(request)
        found, marks = self._index.find(prompt.keys, ready), prompt.marks()
        candidates = []
        for replica in ready:
            load, here = self._loads.of(replica), found.get(replica)
            cached = 0 if here is None else here.blocks
            if load.expected:
                cached = max(cached, load.expected.blocks(marks))
            candidates.append(_candidate(replica, load, prompt, cached, here))
        blocks = sum(map(self._index.blocks, ready))
        held = prompt.tokens_of(blocks) / len(ready) if prompt.blocks else 0.0
        cache_tokens = max(held, self._balance.least_prompts * prompt.tokens)
        return choose_replica(candidates, cache_tokens, self._balance)

    def sent(self, replica: str, request: Generate) -> None:
        """As `Router.sent`."""
        prompt = prompt_of(request)
        here = self._index.find(prompt.keys, [replica]).get(replica, NOTHING)
        expected = self._loads.of(replica).expected.blocks(prompt.marks())
        self._loads.sent(replica, request.request_id, prompt, max(here.blocks, expected))

    def began(
        self, replica: str, request_id: str, reused: Reused | None, timing: Timing | None
    ) -> None:
        """As `Router.began`."""
        self._loads.began(replica, request_id, reused, timing, self._clock())

    def ended(self, replica: str, request_id: str) -> None:
        """As `Router.ended`."""
        self._loads.ended(replica, request_id)

    def heard(self, replica: str, events: CacheEvents) -> None:
        """As `Router.heard`."""
        self._index.apply(replica, events)

    def gone(self, replica: str) -> None:
        """As `Router.gone`."""
        self._index.forget(replica)
        self._loads.forget(replica)


def _candidate(
    replica: str, load: ReplicaLoad, prompt: Prompt, cached: int, found: Found | None
) -> Candidate:
    """A replica that will have `cached` of the prompt's blocks; `found` are there now."""
    rates = load.rates
    per_token = rates.compute.per_token
    compute = (prompt.uncached(cached) if cached else prompt.tokens) * per_token
    first_token = load.queued * per_token + compute
    if found is not None and (found.host or found.disk):
        first_token += prompt.tokens_of(found.host) * rates.host.per_token
        first_token += prompt.tokens_of(found.disk) * rates.disk.per_token
    return Candidate(replica, first_token, compute, load.running, load.given)
