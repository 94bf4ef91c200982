"""A set of fake replicas, and requests to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from engine.errors import EngineError
from engine.link.event_messages import Failed, Finished, Reused, Timing, Tokens
from engine.link.interface import Restarted
from engine.link.messages import Generate, Loads
from gateway.replicas.engine_set import EngineSet
from gateway.replicas.routing_notes import FetchReason, NoNotes
from gateway.routing.prompt import RoutingRequest
from gateway.routing.remote_prefill import RemotePrefillLimits
from gateway.routing.route import OwnRouting, Routing
from gateway.routing.routers.least_outstanding import LeastOutstandingRouter
from tests.doubles.engine.fake_engine import hanging_at
from tests.doubles.replicas.fake_replica import FakeReplica
from tests.engine.rigs.rig import generate


class NotingRouter(LeastOutstandingRouter):
    """A router that records its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str, str]] = []

    def sent(self, replica: str, request: RoutingRequest) -> None:
        super().sent(replica, request)
        self.calls.append(("sent", replica, request.request_id))

    def began(
        self, replica: str, request_id: str, reused: Reused | None, timing: Timing | None
    ) -> None:
        super().began(replica, request_id, reused, timing)
        assert reused is not None
        self.calls.append(("began", replica, request_id))

    def ended(self, replica: str, request_id: str) -> None:
        super().ended(replica, request_id)
        self.calls.append(("ended", replica, request_id))

    def gone(self, replica: str) -> None:
        super().gone(replica)
        self.calls.append(("gone", replica, ""))


@dataclass
class KeptNotes(NoNotes):
    """Routing counts that are recorded for the tests."""

    moves: list[str] = field(default_factory=list)
    fetches: list[FetchReason] = field(default_factory=list)
    # predicted and real times to the first token, in seconds
    firsts: list[tuple[float, float]] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    alone: int = 0

    def moved(self, replica: str) -> None:
        self.moves.append(replica)

    def fetch(self, reason: FetchReason) -> None:
        self.fetches.append(reason)

    def predicted(self, predicted_s: float, real_s: float) -> None:
        self.firsts.append((predicted_s, real_s))

    def routed_alone(self) -> None:
        self.alone += 1

    def snapshot(self, replica: str) -> None:
        self.snapshots.append(replica)


@dataclass
class Fleet:
    """Three replicas a, b and c, and the set of them."""

    replicas: list[FakeReplica] = field(
        default_factory=lambda: [FakeReplica(name) for name in "abc"]
    )
    router: NotingRouter = field(default_factory=NotingRouter)
    notes: KeptNotes = field(default_factory=KeptNotes)

    def __post_init__(self) -> None:
        by_name = {replica.name: replica for replica in self.replicas}
        self.set = EngineSet(by_name, self.routing(), self.notes)

    def routing(self) -> Routing:
        """The router of the set."""
        return OwnRouting(self.router)

    def __getitem__(self, name: str) -> FakeReplica:
        return next(one for one in self.replicas if one.name == name)

    @property
    def moved(self) -> list[str]:
        """The replicas that requests have left for another."""
        return self.notes.moves

    def states(self) -> dict[str, str]:
        return {name: health.state for name, health in self.set.replicas.items()}

    def served(self) -> dict[str, int]:
        """Return each replica's number of requests."""
        return {one.name: len(one.requests) for one in self.replicas}

    def hang(self, at: int = 0) -> None:
        """Let all requests hang before the token `at`."""
        for one in self.replicas:
            one.pace = hanging_at(at)


class Disaggregated(Fleet):
    """Engines with roles: a computes prompts, b and c answer; all of them send blocks to each
    other.
    """

    def __post_init__(self) -> None:
        exchange: dict[str, FakeReplica] = {}
        for one in self.replicas:
            one.joins(exchange, "prefill" if one.name == "a" else "decode")
        super().__post_init__()

    def routing(self) -> Routing:
        return OwnRouting(self.router, RemotePrefillLimits(least_tokens=16))


@dataclass
class Asked:
    """One request, with all events that it receives."""

    fleet: Fleet
    request: Generate
    tokens: list[int] = field(default_factory=list)
    ends: list[Finished | Failed] = field(default_factory=list)
    error: EngineError | None = None
    is_over: bool = False
    # an unstreamed request, which shows nothing before its answer is complete
    is_whole: bool = False

    async def run(self) -> None:
        try:
            async with aclosing(self.fleet.set.generate(self.request, self.ends.append)) as events:
                async for event in events:
                    self._hear(event)
        except EngineError as error:
            self.error = error
        self.is_over = True

    def _hear(self, event: Tokens | Finished | Restarted) -> None:
        if isinstance(event, Tokens):
            self.tokens += event.token_ids
        elif isinstance(event, Restarted):
            if not self.is_whole:
                raise event.error
            self.tokens.clear()


def prompt(number: int = 0) -> list[int]:
    return [number, *range(1, 20)]


@asynccontextmanager
async def asking(
    fleet: Fleet,
    count: int = 1,
    max_tokens: int = 20,
    *,
    loads: Loads = "auto",
    is_whole: bool = False,
) -> AsyncIterator[list[Asked]]:
    """Keep `count` requests running while this context is open."""
    asked = [
        Asked(
            fleet,
            generate(f"r{n}-0", prompt(n), max_tokens=max_tokens, block_size=16, loads=loads),
            is_whole=is_whole,
        )
        for n in range(count)
    ]
    tasks = [asyncio.create_task(one.run()) for one in asked]
    await settled()
    try:
        yield asked
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def settled() -> None:
    """Wait until no task can continue."""
    for _ in range(200):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    """Wait until the condition holds, for a limited time."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def served_once(fleet: Fleet, asked: Sequence[Asked]) -> None:
    """Check that each request has its whole answer and one end, and that nothing is running."""
    for one in asked:
        assert one.error is None
        assert one.tokens == prompt(int(one.request.request_id[1:-2]))[: len(one.tokens)]
        assert len(one.tokens) == 20
        assert [type(end) for end in one.ends] == [Finished]
    assert sum(one.running for one in fleet.replicas) == 0
    sent = [call[1:] for call in fleet.router.calls if call[0] == "sent"]
    ended = [call[1:] for call in fleet.router.calls if call[0] == "ended"]
    assert sorted(sent) == sorted(ended)
