"""A worker's client of the router process. The client chooses by itself if no answer comes.

    ASKING  --no answer within WAIT_S--> ALONE until all answers that were waited for have come
      ^ `------the connection ends-----> ALONE until the next connection's first message
      `-------------------------------------'

While ALONE, the client still sends all events in order. Once the router process has read these
events, it knows the running requests. A new connection begins with the running requests.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from engine.link.cache_events import CacheEvents
from engine.link.event_messages import Reused, Timing
from engine.link.messages import FetchSource
from gateway.processes.backoff import Backoff
from gateway.processes.periodic import repeated
from gateway.router_process.channel import RouterChannel
from gateway.router_process.messages import (
    AskRoute,
    AskSource,
    FromRouter,
    KnownBlocks,
    NoteBegan,
    NoteEnded,
    NoteSent,
    RouteAnswer,
    SourceAnswer,
    ToRouter,
)
from gateway.router_process.own_requests import OwnRequests
from gateway.routing.prompt import RoutingRequest
from gateway.routing.remote_prefill import RemotePrefillLimits, prefill_id
from gateway.routing.route import Route, RouteQuestion, decide, sent_by
from gateway.routing.router import Sources

# A choice takes a quarter of a millisecond at most, and a thousand may be asked for at once. A
# router process that takes longer counts as hung. A worker waits for a hanging process only once.
WAIT_S = 0.25
TURNS = 10  # number of turns of the loop's clock in WAIT_S
RETRY_S = 0.1
# A connection that ends early may end early again, for instance if an older process cannot read it.
RETRY = Backoff(RETRY_S, base_delay_s=2 * RETRY_S, max_delay_s=5.0, healthy_after_s=10.0)
# seconds of silence after which the process counts as away, since it sends a message every second
SILENT_S = 3.0
START_S = 5.0  # seconds to wait for the process before a worker serves without it

_LOG = logging.getLogger(__name__)

# a future answer of the router process; None: no answer came
_Answer: TypeAlias = asyncio.Future[RouteAnswer | SourceAnswer | None]


class RouterClient:
    """A `Routing` that asks the router process. Belongs to one event loop."""

    hears_itself = True

    def __init__(
        self, socket: Path, limits: RemotePrefillLimits | None = None, *, wait_s: float = WAIT_S
    ) -> None:
        """Apply `limits` to remote prefills when this worker chooses by itself."""
        self._socket = socket
        self._limits = limits or RemotePrefillLimits()
        self._wait_s = wait_s
        self._own = OwnRequests()
        self._channel: RouterChannel[FromRouter] | None = None
        self._is_met = asyncio.Event()  # set once the process has sent a message on this connection
        self._numbers = count()
        self._waiting: dict[int, _Answer] = {}
        self._late: set[int] = set()
        self._known: dict[str, int] = {}
        self._is_alone = False
        self._heard_at = 0.0  # time of the last message, by the loop's clock
        self._short_connections = 0

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Stay connected while this context is open. Entering takes START_S at most."""
        async with repeated(self._connect, "router-client"):
            with suppress(TimeoutError):
                async with asyncio.timeout(START_S):
                    await self._is_met.wait()
            yield

    async def route(self, question: RouteQuestion) -> Route:
        request = question.request
        try:
            answer = await self._answer(lambda number: AskRoute(number, question))
        except asyncio.CancelledError:
            self._withdraw(request)
            raise
        if not isinstance(answer, RouteAnswer):
            return self._route_alone(question)
        for replica, sent in sent_by(request, answer.route):
            self._own.sent(replica, sent)
        return answer.route

    async def source(
        self, request: RoutingRequest, replica: str, sources: Sources
    ) -> FetchSource | None:
        """Ask the router process where `replica` should fetch a prompt; None without an answer."""
        answer = await self._answer(lambda number: AskSource(number, request, replica, sources))
        return answer.source if isinstance(answer, SourceAnswer) else None

    def began(
        self, replica: str, request_id: str, reused: Reused | None, timing: Timing | None
    ) -> None:
        self._own.began(replica, request_id, reused, timing)
        self._tell(NoteBegan(request_id, reused, timing))

    def ended(self, replica: str, request_id: str) -> None:
        self._own.ended(replica, request_id)
        self._tell(NoteEnded(request_id))

    def heard(self, replica: str, events: CacheEvents) -> None:
        """Do nothing: the router process hears cache events itself."""

    def gone(self, replica: str) -> None:
        """Forget this worker's requests on a replica. The router process forgets by itself."""
        self._own.gone(replica)

    def known_blocks(self, replica: str) -> int:
        """Return a replica's number of blocks known a second ago; 0 while the process is away."""
        return self._known.get(replica, 0)

    @property
    def router_answers(self) -> bool:
        """True if the process is connected and has sent a message within SILENT_S."""
        is_late = bool(self._late) or self._now() - self._heard_at > SILENT_S
        return self._is_met.is_set() and not is_late

    async def _answer(self, ask: Callable[[int], ToRouter]) -> RouteAnswer | SourceAnswer | None:
        """Ask the process; return None if it does not answer, or would answer late."""
        if not self._is_met.is_set() or self._late:
            return None
        number = next(self._numbers)
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._tell(ask(number))
        self._wait(number, TURNS)
        return await answer

    def _wait(self, number: int, turns: int) -> None:
        """Stop waiting after TURNS turns of the loop.

        A turn in which the loop is blocked counts as one turn, however long it lasts.
        """
        answer = self._waiting.get(number)
        if answer is None:
            return
        if turns:
            loop = asyncio.get_running_loop()
            loop.call_later(self._wait_s / TURNS, self._wait, number, turns - 1)
            return
        del self._waiting[number]
        if not answer.done():
            self._late.add(number)
            answer.set_result(None)

    def _route_alone(self, question: RouteQuestion) -> Route:
        if not self._is_alone:
            self._is_alone = True
            _LOG.warning(
                "the router process does not answer; meanwhile replicas are chosen by this "
                "worker's requests alone"
            )
        request = question.request
        # The router process may have decided, too late, that another engine computes the prompt.
        self._tell(NoteEnded(prefill_id(request.request_id)))
        route = decide(self._own, question, self._limits)
        for replica, sent in sent_by(request, route):
            self._tell(NoteSent(replica, sent))
        return replace(route, is_alone=True)

    def _withdraw(self, request: RoutingRequest) -> None:
        """Withdraw a question, and void the decision that it may have caused."""
        for request_id in (prefill_id(request.request_id), request.request_id):
            self._tell(NoteEnded(request_id))

    def _tell(self, message: ToRouter) -> None:
        if self._channel is not None and self._is_met.is_set():
            self._channel.send(message)

    async def _connect(self) -> None:
        self._channel = channel = RouterChannel[FromRouter](FromRouter, self._take)
        with suppress(OSError):  # no process listens on the socket
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(lambda: channel, str(self._socket))
            began = self._now()
            try:
                await channel.closed.wait()
            finally:
                self._lose(channel, self._now() - began)
        await asyncio.sleep(RETRY.delay(self._short_connections))

    def _lose(self, channel: RouterChannel[FromRouter], lasted_s: float) -> None:
        channel.close()
        is_short = lasted_s < RETRY.healthy_after_s
        self._short_connections = self._short_connections + 1 if is_short else 0
        self._channel = None
        self._is_met.clear()
        self._late.clear()
        self._known = {}
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_result(None)

    def _take(self, message: FromRouter) -> None:
        self._heard_at = self._now()
        if isinstance(message, KnownBlocks):
            self._known = message.blocks
            if not self._is_met.is_set():
                self._meet()
            return
        self._late.discard(message.number)
        answer = self._waiting.pop(message.number, None)
        if answer is not None and not answer.done():
            answer.set_result(message)
        if not self._late:
            self._is_back()

    def _meet(self) -> None:
        self._is_met.set()
        for message in self._own.told_anew():
            self._tell(message)
        self._is_back()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _is_back(self) -> None:
        if self._is_alone:
            self._is_alone = False
            _LOG.warning("the router process answers again")
