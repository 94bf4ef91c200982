"""A replay of a trace through several replicas' caches, to which a gateway's router sends requests.

Each replica computes in steps (`steps`). As an engine does, a replica reports changes of its cache
to the router at a prompt's first token. With a rate of fetching, replicas fetch blocks that other
replicas have. If some replicas only prefill, the gateway's own code decides which prompts they
compute.

    arrival -> replica chosen -> KV loaded, fetched -> computed in steps -> first token -> end
                 `-----> computed on another replica -> KV fetched -> last token computed here
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cli.plan.machine import MachineModel, ModelShape
from cli.simulation.replay import KeyedRequest, Replay, Replayed, ServedRequest
from cli.simulation.steps import Gap, Job, SimulatedStepBounds, SteppedEngine, VirtualClock
from engine.link.cache_events import CacheEvents, EventsTaken, Subscribe
from engine.link.event_messages import Reused, Timing
from engine.link.messages import Role
from engine.link.stats.tier_stats import TierTokens
from engine.queries.cache_feed import CacheFeed
from gateway.routing.prompt import RoutingRequest
from gateway.routing.remote_prefill import RemotePrefillLimits, answering, computing
from gateway.routing.route import RouteQuestion, decide, sent_by
from gateway.routing.router import NO_SOURCES, Router, Sources
from prefix_cache.hashing import KEY_BYTES
from prefix_cache.tree.probe import probe

_GATEWAY = b"simulation"


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a replica's model and machine, and of the link between replicas."""

    shape: ModelShape
    machine: MachineModel
    block_size: int
    fetch_gb_s: float = 0.0  # GB/s of the link between replicas; 0: no tokens are fetched
    fetch_setup_s: float = 0.002
    step: SimulatedStepBounds = field(default_factory=SimulatedStepBounds)
    remote: RemotePrefillLimits = field(default_factory=RemotePrefillLimits)

    def fetch_seconds(self, tokens: int) -> float:
        """Estimate the seconds to send the bytes of `tokens` tokens over the link."""
        return tokens * self.shape.kv_bytes_per_token / (self.fetch_gb_s * 1e9)


class SimulatedReplica:
    """A replica: its cache, its steps, and the time at which its last transfer of blocks ends."""

    def __init__(
        self, name: str, replay: Replay, costs: Costs, clock: VirtualClock, role: Role = "both"
    ) -> None:
        self.name = name
        self.role: Role = role
        self.replay = replay
        self.engine = SteppedEngine(clock, costs.shape, costs.machine, costs.step)
        self._costs = costs
        self._sends_until = 0.0
        self._feed = CacheFeed(replay.cache.tree)
        self._feed.heard(_GATEWAY, Subscribe())

    def admit(self, admitted: KeyedRequest) -> tuple[ServedRequest, float]:
        """Replay a request. Return its tokens' sources, and the seconds to load cached tokens."""
        served = self.replay.serve(admitted)
        shape, machine = self._costs.shape, self._costs.machine
        return served, machine.load_seconds(shape, served.from_host, served.from_disk)

    def has(self, admitted: KeyedRequest) -> int:
        """Count the tokens of a prompt that other replicas may fetch from this replica."""
        found, *_ = probe(self.replay.cache.tree, admitted.path, admitted.request.ids)
        return (found.device + found.host + found.disk) * self._costs.block_size

    def sent_at(self, now: float, tokens: int) -> float:
        """Return the time at which `tokens` tokens have been sent, after all earlier transfers."""
        self._sends_until = max(now, self._sends_until) + self._costs.fetch_seconds(tokens)
        return self._sends_until + self._costs.fetch_setup_s

    def streamed_at(self, began: float, now: float, tokens: int) -> float:
        """Return the arrival time of tokens that were sent while they were computed.

        The computation ends at `now`.
        """
        last = self._costs.fetch_seconds(min(tokens, self._costs.step.tokens))
        return max(self.sent_at(began, tokens), now + last + self._costs.fetch_setup_s)

    def news(self) -> list[CacheEvents]:
        """List the cache's changes since the last call, in the form that engines report."""
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


@dataclass(slots=True)
class _Part:
    replica: SimulatedReplica
    request: RoutingRequest
    served: ServedRequest
    ready_at: float  # time at which all tokens that this replica does not compute have arrived
    load: float
    fetched: int = 0


class ReplicaSet:
    """Replicas, and the router that sends requests to them."""

    def __init__(
        self,
        router: Router,
        clock: VirtualClock,
        replicas: Sequence[SimulatedReplica],
        costs: Costs,
    ) -> None:
        """Serve requests as `router` routes them. All replicas share `clock`."""
        self._router = router
        self._clock = clock
        self._replicas = {one.name: one for one in replicas}
        self._sources: Sources = {n: n for n in self._replicas} if costs.fetch_gb_s else NO_SOURCES
        self._costs = costs
        self.served: list[ServedRequest] = []
        self.ttft_s: list[float] = []
        self.remote_prefills = 0

    def run(self, admitted: Sequence[KeyedRequest], advance: Callable[[int], None]) -> None:
        """Serve all requests. `advance` is called with the number of blocks of each request."""
        for number, one in enumerate(admitted):
            self._clock.advance(one.request.at)
            self._serve(str(number), one)
            advance(len(one.request.ids))
        self._clock.finish()

    def replayed(self) -> list[Replayed]:
        """Return the requests that each replica has served."""
        return [one.replay.result for one in self._replicas.values()]

    @property
    def gaps(self) -> list[Gap]:
        """The gaps between tokens, over all replicas."""
        return [gap for one in self._replicas.values() for gap in one.engine.gaps]

    def _serve(self, request_id: str, admitted: KeyedRequest) -> None:
        request = _as_routed(request_id, admitted, self._costs.block_size)
        names = list(self._replicas)
        able = computing(names, self._role)
        question = RouteQuestion(request, answering(names, self._role), self._sources, able)
        route = decide(self._router, question, self._costs.remote)
        *prompts, answer = (self._sent(*one, admitted) for one in sent_by(request, route))
        if not prompts:
            self.served.append(answer.served)
            self._compute(answer, admitted, admitted.request.output_tokens)
            return
        [remote] = prompts
        self.remote_prefills, arrived = self.remote_prefills + 1, self._clock.now
        there = remote.served.cached + remote.fetched
        cached = answer.served.cached
        own = min(max(there - cached, 0), answer.fetched)
        self.served.append(answer.served._replace(fetched=own))

        def computed() -> None:
            there = remote.replica.streamed_at(arrived, self._clock.now, answer.fetched)
            answer.ready_at = max(answer.ready_at, there)
            self._compute(answer, admitted, admitted.request.output_tokens)

        self._compute(remote, admitted, 1, computed)

    def _role(self, name: str) -> Role:
        return self._replicas[name].role

    def _sent(self, name: str, request: RoutingRequest, admitted: KeyedRequest) -> _Part:
        now, source = self._clock.now, request.source
        replica = self._replicas[name]
        tokens, fetched = admitted.request.input_tokens, 0
        there = 0
        if source is not None:
            other = self._replicas[source.address]
            is_running = source.request_id is not None
            there = tokens if is_running else min(source.num_tokens, other.has(admitted))
        served, load = replica.admit(admitted)
        part = _Part(replica, request, served, now + load, load)
        if source is not None:
            fetched = max(min(there, tokens - 1) - served.cached, 0)
            part.fetched = fetched
            part.served = replica.replay.note_fetched(fetched)
            if fetched and source.request_id is None:
                part.ready_at = max(
                    part.ready_at, self._replicas[source.address].sent_at(now, fetched)
                )
        return part

    def _compute(
        self,
        part: _Part,
        admitted: KeyedRequest,
        output: int,
        computed: Callable[[], None] | None = None,
    ) -> None:
        """Compute the uncached tokens of `part`, then call `computed` (for remote prefills)."""
        clock, router, replica = self._clock, self._router, part.replica
        there = part.served.cached + part.fetched
        news, arrived, request_id = replica.news(), clock.now, part.request.request_id

        def begun() -> None:
            for events in news:
                router.heard(replica.name, events)
            router.began(replica.name, request_id, *self._told(part, job, arrived))
            if computed is None:
                self.ttft_s.append(clock.now - admitted.request.at)
            if output <= 1:
                ended()
            if computed is not None:
                computed()

        def ended() -> None:
            router.ended(replica.name, request_id)

        tokens = max(admitted.request.input_tokens - there, 1)
        job = Job(tokens, there, output, begun, ended)
        ready_at = part.ready_at + self._costs.machine.start_ms / 1000
        clock.at(max(ready_at, clock.now), lambda: replica.engine.add(job))

    def _told(self, part: _Part, job: Job, arrived: float) -> tuple[Reused, Timing]:
        """Write the report that an engine sends with the first token: reused tokens, and times."""
        served = part.served
        tiers = TierTokens(served.from_device, served.from_host, served.from_disk)
        started = arrived if job.started_at is None else job.started_at
        fetch = max(part.ready_at - arrived - part.load, 0.0) if part.fetched else 0.0
        queue = max(started - arrived - part.load - fetch, 0.0)
        now = self._clock.now
        timing = Timing(queue, 0.0, part.load, now - started, fetch, now)
        return Reused(tiers, fetched=part.fetched), timing


def _as_routed(request_id: str, admitted: KeyedRequest, block_size: int) -> RoutingRequest:
    tokens = admitted.request.input_tokens
    return RoutingRequest(
        request_id, tokens, admitted.keys[: tokens // block_size * KEY_BYTES], admitted.path.last
    )
