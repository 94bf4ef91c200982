"""Replays a trace through several caches, one for each replica, and the router that serves.

Each replica computes one prompt after the other, as long as `MachineModel` says; what comes
meanwhile waits for its turn. Decodes take no time of it. What its cache has changed is told to the
router when a prompt's first token comes, as an engine does.

Knows: routers, replays, the order of what happens. Does not know: which router is best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count

from cli.simulation.machine import MachineModel, ModelShape
from cli.simulation.replay import KeyedRequest, Replay, Replayed, ServedRequest
from engine.cache_feed import CacheFeed
from engine.link.cache_events import CacheEvents, EventsTaken, Subscribe
from engine.link.messages import Generate, Reused, SamplingParams, Timing
from engine.link.stats_messages import TierTokens
from gateway.routing.router import Router
from prefix_cache.hashing import KEY_BYTES

_GATEWAY = b"simulation"


class VirtualClock:
    """The time of a simulation, and what is to happen later."""

    def __init__(self) -> None:
        self.now = 0.0
        self._serial = count()
        self._later: list[tuple[float, int, Callable[[], None]]] = []

    def __call__(self) -> float:
        """Seconds since the trace began."""
        return self.now

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Call `act` at that time; what is due at one time happens in the order of these calls."""
        heappush(self._later, (when, next(self._serial), act))

    def advance(self, until: float) -> None:
        """Let all happen that is due."""
        while self._later and self._later[0][0] <= until:
            self.now, _, act = heappop(self._later)
            act()
        self.now = until


@dataclass(frozen=True, slots=True)
class Costs:
    """What a replica's model and machine are."""

    shape: ModelShape
    machine: MachineModel
    block_size: int


class SimulatedReplica:
    """One replica: its cache, and until when it is busy."""

    def __init__(self, name: str, replay: Replay, costs: Costs) -> None:
        self.name = name
        self.replay = replay
        self.free_at = 0.0
        self._costs = costs
        self._feed = CacheFeed(replay.cache.tree)
        self._feed.heard(_GATEWAY, Subscribe())

    def serve(self, admitted: KeyedRequest) -> tuple[ServedRequest, Timing]:
        """Serve a request when those before it are served; it waits for that as well."""
        request = admitted.request
        queue = max(self.free_at - request.at, 0.0)
        served = self.replay.serve(
            replace(admitted, request=replace(request, at=request.at + queue))
        )
        shape, machine = self._costs.shape, self._costs.machine
        load = served.waited_s or machine.load_seconds(shape, served.from_host, served.from_disk)
        computed = served.input_tokens - served.cached
        prefill = machine.prefill_seconds(shape, computed, served.cached)
        prefill += machine.start_ms / 1000
        self.free_at = request.at + queue + load + prefill
        return served, Timing(queue, 0.0, load, prefill)

    def decode_seconds(self, served: ServedRequest, output_tokens: int) -> float:
        """How long it answers after its first token, with nothing else in its steps."""
        context = served.input_tokens + output_tokens / 2
        return output_tokens * self._costs.machine.step_seconds(self._costs.shape, 1, context)

    def news(self) -> list[CacheEvents]:
        """What its cache has changed since the last time, as an engine says it."""
        news: list[CacheEvents] = []

        def take(_: bytes, events: CacheEvents) -> bool:
            news.append(events)
            return True

        while True:
            self._feed.publish(take)
            if news:
                self._feed.heard(_GATEWAY, EventsTaken(news[-1].number))
            if not self._feed.has_more:
                return news


class ReplicaSet:
    """Replicas behind a router."""

    def __init__(
        self,
        router: Router,
        clock: VirtualClock,
        replicas: Sequence[SimulatedReplica],
        costs: Costs,
    ) -> None:
        """`clock` is the router's."""
        self._router = router
        self._clock = clock
        self._replicas = {one.name: one for one in replicas}
        self._costs = costs
        self.served: list[ServedRequest] = []  # all requests, in order
        self.ttft_s: list[float] = []  # of each of them, queues included

    def run(self, admitted: Sequence[KeyedRequest], advance: Callable[[int], None]) -> None:
        """Serve everything; `advance` gets the blocks of each request."""
        for number, one in enumerate(admitted):
            self._clock.advance(one.request.at)
            self._serve(str(number), one)
            advance(len(one.request.ids))

    def replayed(self) -> list[Replayed]:
        """What each replica has served."""
        return [one.replay.result for one in self._replicas.values()]

    def _serve(self, request_id: str, admitted: KeyedRequest) -> None:
        router, clock = self._router, self._clock
        request = _as_generate(request_id, admitted, self._costs.block_size)
        name = router.choose(request, list(self._replicas)).replica
        router.sent(name, request)
        replica = self._replicas[name]
        served, timing = replica.serve(admitted)
        news, first_token = replica.news(), replica.free_at
        self.served.append(served)
        self.ttft_s.append(first_token - admitted.request.at)

        def began() -> None:
            for events in news:
                router.heard(name, events)
            tiers = TierTokens(served.from_device, served.from_host, served.from_disk)
            router.began(name, request_id, Reused(tiers), timing)

        decode = replica.decode_seconds(served, admitted.request.output_tokens)
        clock.at(first_token, began)
        clock.at(first_token + decode, lambda: router.ended(name, request_id))


def _as_generate(request_id: str, admitted: KeyedRequest, block_size: int) -> Generate:
    request = admitted.request
    whole = request.input_tokens // block_size
    return Generate(
        request_id=request_id,
        token_ids=bytes(4 * request.input_tokens),
        namespaces=admitted.path.spans,
        block_keys=admitted.keys[: whole * KEY_BYTES],
        flow=request.tenant,
        sampling=SamplingParams(max_tokens=max(request.output_tokens, 1)),
    )
