"""The handling of clients' messages: requests are queued or cancelled, queries are answered.

    take ... accept | cancel ... answer

The engine's own requests are accepted and cancelled here too (`engine_requests.py`).

Elsewhere: the types of messages (`link`), the answers to queries (`queries`), and the list of
running requests (`clients.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.components import Components
from engine.errors import EngineError, EngineUnavailable
from engine.in_flight.clients import Clients
from engine.in_flight.unready import Unready
from engine.link.cache_events import EventsTaken, Subscribe
from engine.link.carrying_messages import BeginImport, EndImport, ReadPrefix, WriteImport
from engine.link.engine_end.socket_link import Incoming
from engine.link.messages import Cancel, Generate, Hello, Partition, RecordedFlushes
from engine.link.query_messages import (
    DropAdapter,
    Flush,
    ForgetMarked,
    ListMarked,
    Pin,
    Probe,
    ReadAdapter,
    StatsQuery,
    Unpin,
    Unpinned,
)
from engine.link.view_messages import View
from engine.queries.cache_feed import CacheFeed
from engine.queries.queries import Queries
from engine.sequences.intake import quota_of
from engine.sequences.pins import OURSELVES

# Seconds after which clients of a draining engine retry; its successor should run by then.
RETRY_AFTER_S = 2.0


class Inbox:
    """The handling of all messages that one engine receives. Used by one thread only.

    `is_awaited` is set when a request arrives whose flow has no other request. The loop resets it.
    `waits_for_flushes` is set if recorded flushes arrive before the first request. No request may
    start before these flushes are done.
    """

    def __init__(
        self,
        components: Components,
        clients: Clients,
        unready: Unready,
        queries: Queries,
        cache_feed: CacheFeed,
    ) -> None:
        self.is_awaited = False
        self.is_draining = False
        self.waits_for_flushes = False
        self._has_served = False
        self._intake = components.intake
        self._scheduler = components.scheduler
        self._settler = components.settler
        self._cache = components.cache
        self._pins = components.pins
        self._sentinel = components.sentinel
        self._modules = components.modules
        self._carried = components.carried
        self._adapters = components.adapters
        self._welcome = components.welcome
        self._clock = components.clock
        self._clients = clients
        self._unready = unready
        self._queries = queries
        self._cache_feed = cache_feed

    def take(self, incoming: Iterable[Incoming]) -> None:
        """Handle the messages in their order."""
        for client, message in incoming:
            match message:
                case RecordedFlushes():
                    for flow in message.flushes.values():
                        self.cancel_own(self._sentinel.forget(flow))
                    self._queries.orders.flush_recorded(message.flushes, self._clients.alive)
                    self.waits_for_flushes = not self._has_served
                case Partition():
                    self._queries.orders.divide(message)
                case Generate():
                    self.accept(client, message)
                case Cancel():
                    self._cancel(client, message.request_id)
                case Hello():
                    self._clients.tell(client, self._welcome)
                case Subscribe() | EventsTaken():
                    self._cache_feed.heard(client, message)
                case Pin():
                    self._clients.answer(self._pins.ask(client, message, self._clock()))
                case Unpin():
                    self._clients.tell(client, self._unpin(message))
                case ReadPrefix() | BeginImport() | WriteImport() | EndImport():
                    self._clients.tell(client, self._carried.answer(message, self._clock()))
                case ReadAdapter():
                    self._adapters.ask(client, message)
                case Flush() | ForgetMarked() | DropAdapter():
                    self.cancel_own(self._sentinel.forget(message.flow))
                    self._queries.orders.order(client, message, self._clients.alive)
                case Probe() | ListMarked() | StatsQuery() | View():
                    self._clients.tell(client, self._queries.answer(message, self._clients.alive))

    def accept(self, client: bytes, request: Generate, *, is_module: bool = False) -> None:
        """Queue a request, or send its client the error that refuses it."""
        try:
            self._enqueue(client, request, is_module=is_module)
        except EngineError as error:
            self._clients.refuse(client, request.request_id, error)

    def cancel_own(self, request_id: str | None) -> None:
        """Cancel the engine's own request with this id, if it is given and still runs."""
        if request_id is not None:
            self._cancel(OURSELVES, request_id)

    def _enqueue(self, client: bytes, request: Generate, *, is_module: bool) -> None:
        if self.is_draining:
            raise EngineUnavailable("the engine is stopping", retry_after_s=RETRY_AFTER_S)
        self._has_served = self._has_served or client != OURSELVES
        self._clients.check_new(client, request.request_id)
        self._adapters.check(request.adapter)
        sequence = self._intake.accept(client, request, self._clock())
        if (quota := quota_of(request)) is not None:
            self._cache.quotas.set(request.flow, quota)
        is_alone = not self._scheduler.has_any_of(sequence.flow)
        queue = self._scheduler.queue
        (queue.push_module if is_module else queue.push)(sequence)
        self.is_awaited = self.is_awaited or is_alone
        self._clients.add(sequence)
        if sequence.awaits_constraint:
            self._unready.add(sequence)
        self._adapters.add(sequence, self._cache.tree.tops)
        self._modules.add(sequence)

    def _cancel(self, client: bytes, request_id: str) -> None:
        sequence = self._clients.find(client, request_id)
        if sequence is not None:  # None: the request ended before the cancellation arrived
            self._clients.post([self._settler.cancel(sequence, self._clock())])

    def _unpin(self, message: Unpin) -> Unpinned:
        blocks, request_id, answers = self._pins.let_go(message.pin_id, self._clock())
        self.cancel_own(request_id)
        self._clients.answer(answers)
        return Unpinned(query_id=message.query_id, blocks=blocks)
