"""The router's end of workers' connections: it answers questions, and notes requests.

A worker's requests end with its connection, however the connection ends. Notes about requests of
other connections are ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gateway.router_process.channel import RouterChannel
from gateway.router_process.messages import (
    AskRoute,
    AskSource,
    KnownBlocks,
    NoteBegan,
    NoteEnded,
    NoteSent,
    RouteAnswer,
    SourceAnswer,
    ToRouter,
)
from gateway.routing.prompt import RoutingRequest
from gateway.routing.remote_prefill import RemotePrefillLimits
from gateway.routing.route import decide, sent_by
from gateway.routing.router import Router

_LOG = logging.getLogger(__name__)


class RouterService:
    """The router and all connected workers. Used in one event loop."""

    def __init__(
        self,
        router: Router,
        known: Callable[[], KnownBlocks],
        limits: RemotePrefillLimits | None = None,
    ) -> None:
        """Send workers the counts that `known` returns. Apply `limits` to remote prefills."""
        self._router = router
        self._known = known
        self._limits = limits or RemotePrefillLimits()
        self._workers: set[WorkerConnection] = set()

    def meet(self) -> RouterChannel[ToRouter]:
        """Open a channel for a worker's new connection."""
        worker = WorkerConnection(self._router, self._limits, self._known, self._workers.discard)
        self._workers.add(worker)
        return worker.channel

    def tell_known(self) -> None:
        """Tell all workers how many blocks each replica has."""
        known = self._known()
        for worker in tuple(self._workers):
            worker.channel.send(known)

    def close(self) -> None:
        """End all workers' connections."""
        for worker in tuple(self._workers):
            worker.channel.close()


class WorkerConnection:
    """The connection of a worker, with the worker's running requests."""

    def __init__(
        self,
        router: Router,
        limits: RemotePrefillLimits,
        known: Callable[[], KnownBlocks],
        over: Callable[[WorkerConnection], None],
    ) -> None:
        self._router = router
        self._limits = limits
        self._at: dict[str, str] = {}
        self._over = over
        self.channel = RouterChannel[ToRouter](
            ToRouter, self._take, lambda: self.channel.send(known()), self._lost
        )

    def _take(self, message: ToRouter) -> None:
        match message:
            case AskRoute():
                self._route(message)
            case AskSource(number, request, replica, sources):
                choice = self._router.choose(request, [replica], sources)
                self.channel.send(SourceAnswer(number, choice.source))
            case NoteSent(replica, request):
                self._note(replica, request)
                self._router.sent(replica, request)
            case NoteBegan(request_id, reused, timing):
                if (at := self._at.get(request_id)) is not None:
                    self._router.began(at, request_id, reused, timing)
            case NoteEnded(request_id):
                if (at := self._at.pop(request_id, None)) is not None:
                    self._router.ended(at, request_id)

    def _route(self, asked: AskRoute) -> None:
        route = decide(self._router, asked.question, self._limits)
        for replica, request in sent_by(asked.question.request, route):
            self._note(replica, request)
        self.channel.send(RouteAnswer(asked.number, route))

    def _note(self, replica: str, request: RoutingRequest) -> None:
        self._at[request.request_id] = replica

    def _lost(self) -> None:
        if self.channel.broke:
            _LOG.warning("a connection to the router process sent no message, and was ended")
        for request_id, replica in self._at.items():
            self._router.ended(replica, request_id)
        self._at.clear()
        self._over(self)
