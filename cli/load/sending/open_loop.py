"""Open-loop load: requests are sent at set times, even while earlier requests still run.

A client that is late still sends every request. All times of a request are measured from its
arrival, and `waited_s` is the time until it was sent. If a way of batching holds requests back,
`waited_s` includes the wait for the batch.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from cli.load.sender import Body, Clock, LoadTarget, RequestOutcome, Sender, load_session
from cli.load.sending.batching import Batching, ContinuousBatching, Waiting
from cli.load.sending.processes import LoadProcesses
from cli.load.slo import Slo

Ask = Callable[[Body], Awaitable[RequestOutcome]]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request, and its arrival in seconds after the start of the run."""

    at: float
    body: Body


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The early end of a run: more than `most_missed` misses of the SLO, or a time limit."""

    slo: Slo
    most_missed: int
    after_s: float


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """Requests in order of arrival, and the way to send them to an endpoint."""

    server: LoadTarget
    path: str
    arrivals: tuple[Arrival, ...]
    every_chunk: bool = False
    batching: Batching = ContinuousBatching()
    give_up: GiveUp | None = None


@dataclass
class OpenLoop:
    """A run of open-loop load. `clock` is the sender's clock, in seconds."""

    ask: Ask
    batching: Batching
    clock: Clock = time.perf_counter
    give_up: GiveUp | None = None
    _outcomes: list[RequestOutcome] = field(default_factory=list)
    _waiting: deque[tuple[float, Body]] = field(default_factory=deque)
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _missed: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, arrivals: Sequence[Arrival]) -> list[RequestOutcome]:
        """Send all requests, and return the outcomes in the order in which they ended.

        Some outcomes are missing if the run was given up.
        """
        began, coming = self.clock(), deque(arrivals)
        async with asyncio.TaskGroup() as group:
            while (coming or self._waiting or self._running) and not self._is_given_up(began):
                now = self.clock()
                while coming and began + coming[0].at <= now:
                    arrival = coming.popleft()
                    self._waiting.append((began + arrival.at, arrival.body))
                self._send_due(group, now, more_will_come=bool(coming))
                await self._sleep_until(self._next_time(began, coming))
            for task in self._running:
                task.cancel()
        return self._outcomes

    def _send_due(self, group: asyncio.TaskGroup, now: float, *, more_will_come: bool) -> None:
        for _ in range(self.batching.due(self._queue(more_will_come=more_will_come), now)):
            task = group.create_task(self._ask_one(*self._waiting.popleft()))
            self._running.add(task)
            task.add_done_callback(self._ended)

    async def _ask_one(self, due_at: float, body: Body) -> None:
        outcome = (await self.ask(body)).arrived(due_at)
        self._outcomes.append(outcome)
        if self.give_up is not None:
            self._missed += not self.give_up.slo.is_met_by(outcome)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._changed.set()

    def _queue(self, *, more_will_come: bool) -> Waiting:
        oldest_at = self._waiting[0][0] if self._waiting else 0.0
        return Waiting(len(self._waiting), oldest_at, len(self._running), more_will_come)

    def _is_given_up(self, began: float) -> bool:
        end = self.give_up
        return end is not None and (
            self._missed > end.most_missed or self.clock() >= began + end.after_s
        )

    def _next_time(self, began: float, coming: Sequence[Arrival]) -> float | None:
        """Return the time of the next arrival, batch or time limit, if any is due."""
        times = [self.batching.deadline(self._queue(more_will_come=bool(coming)))]
        times += [began + coming[0].at] if coming else []
        times += [began + self.give_up.after_s] if self.give_up is not None else []
        return min((at for at in times if at is not None), default=None)

    async def _sleep_until(self, at: float | None) -> None:
        left = None if at is None else max(at - self.clock(), 0.0)
        try:
            async with asyncio.timeout(left):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()


def drive_open(load: OpenLoad, processes: LoadProcesses) -> list[RequestOutcome]:
    """Run a load in these processes, or in only one process if it is sent in batches.

    Of several processes, each ends early when its own requests alone have missed the SLO more than
    `most_missed` times.
    """
    alone = not isinstance(load.batching, ContinuousBatching)
    count = 1 if alone else max(min(processes.count, len(load.arrivals)), 1)
    parts = [replace(load, arrivals=load.arrivals[index::count]) for index in range(count)]
    return processes.run(run_part, parts)


def run_part(load: OpenLoad) -> list[RequestOutcome]:
    """Run a part of a load in this process."""

    async def run() -> list[RequestOutcome]:
        async with load_session(load.server.timeout_s) as session:
            url = load.server.url + load.path
            sender = Sender(session, url, load.server.key, every_chunk=load.every_chunk)
            loop = OpenLoop(sender.ask, load.batching, give_up=load.give_up)
            return await loop.run(load.arrivals)

    return asyncio.run(run())
