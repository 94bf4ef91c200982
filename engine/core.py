"""The engine's loop: take, complete copies, schedule, launch, settle, reply, commit.

With `overlap_scheduling`, a step is settled after the next step's launch. The device then computes
while the host appends tokens and writes messages:

    host    | schedule n+1, launch | wait for n, settle n, reply | schedule n+2, launch | wait...
    device  |  step n .....................| step n+1 .................................| step n+2

A step that verifies drafts is settled before the next step is scheduled. With several pipeline
stages, the stages compute steps of different sequences at the same time. If a step has constrained
rows, its sampling is launched after the replies and the commit, because the rows' masks are made
meanwhile.

Elsewhere: steps' times (`in_flight`), answers to queries (`queries`), how copies run (`copies.py`),
and the process's end (`process.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.components import Components
from engine.copies import COPY_WAIT_S
from engine.errors import EngineError, EngineUnavailable
from engine.in_flight.clients import Clients
from engine.in_flight.launches import Launches
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
from engine.link.stats_messages import EngineStats
from engine.link.view_messages import View
from engine.queries.cache_feed import SNAPSHOT_PACE_S, CacheFeed
from engine.queries.queries import Queries
from engine.queries.tree_views import PACE_S
from engine.scheduling.scheduled_rows import Scheduled, ScheduledRow
from engine.sentinel.sentinel import Load
from engine.sequences.intake import quota_of
from engine.sequences.pins import OURSELVES
from prefix_cache.eviction.shares import PUBLISHED

IDLE_WAIT_S = 0.1
SAVED_AT_ONCE = 256
RETRY_AFTER_S = 2.0  # seconds, for clients of a draining engine, whose successor is up by then


class EngineCore:
    """The data and the loop of one engine. Used by one thread only."""

    def __init__(self, components: Components) -> None:
        self.components = components
        self.queries = Queries(components)
        self._link = components.link
        self._intake = components.intake
        self._scheduler = components.scheduler
        self._settler = components.settler
        self._cache = components.cache
        self._pins = components.pins
        self._sentinel = components.sentinel
        self._modules = components.modules
        self._copies = components.copies
        self._exchange = components.exchange
        self._carried = components.carried
        self._adapters = components.adapters
        self._welcome = components.welcome
        self._clients = Clients(components)
        self._unready = Unready()
        self._launches = Launches(components)
        self._cache_feed = CacheFeed(components.cache.tree)
        self._clock = components.clock
        self._overlaps = components.overlap_scheduling
        self._has_stages = components.stages > 1
        self._most_ahead = max(components.stages - 1, int(components.overlap_scheduling))
        self._is_still = False
        self._is_awaited = False
        self._is_draining = False

    @property
    def is_idle(self) -> bool:
        """True if no request is waiting or running."""
        return not self._clients.alive

    def step(self) -> None:
        """Run one turn of the loop. Without work, wait a moment for messages."""
        self._take(self._link.receive(timeout_s=self._patience()))
        self._copies.complete(self._clock())
        self._exchange_blocks()
        self._warm_pins()
        self._check_answers()
        self._compute_modules()
        self._take_constraints()
        self._give_adapters()
        launched = tuple[ScheduledRow, ...]()
        if not self._time_left():
            self._settle_drafts()
            began = self._clock()
            self._is_awaited = False
            step = self._scheduler.schedule(began, max_tokens=self._launches.budget)
            goes_on = bool(step.rows or self._launches or self._cache.in_flight)
            self._modules.ran(began, goes_on=goes_on)
            is_ahead = self._begin(step)
            if is_ahead:
                launched = tuple(step.rows)
                self._launches.decided(self._clock() - began)
            self._settle(leaving=self._leaving(is_ahead=is_ahead))
            self._launches.ask_for_masks()
        self._clients.send()
        self._settler.commit(self._clock())
        self._sample()
        if self._launches:  # the device computes
            self._scheduler.prepare_drafts(launched)
        self._cache_feed.publish(self._link.send)
        self.queries.tree_views.advance()

    def run_own(self, request: Generate) -> None:
        """Run one of the engine's own requests to its end. A refused request ends immediately."""
        self._accept(OURSELVES, request)
        while self._clients.find(OURSELVES, request.request_id) is not None:
            self.step()

    def spill(self, seconds: float) -> None:
        """Write the blocks that are not on disk yet, hottest first, for at most `seconds`.

        All requests have ended before the call. New requests are refused meanwhile.
        """
        copies = self._copies
        give_up = self._clock() + seconds
        while self._clock() < give_up:
            copies.complete(self._clock())
            num_copies = self._cache.restart.save(SAVED_AT_ONCE)
            copies.start(self._clock())
            if not num_copies and not copies.pending:
                return
            self._take(self._link.receive(timeout_s=COPY_WAIT_S))
            self._clients.send()

    def drain(self) -> None:
        """Refuse new requests from now on. Accepted requests run on."""
        self._is_draining = True

    def fail_all(self, error: EngineError) -> None:
        """End every accepted request with `error`, and tell its client."""
        now = self._clock()
        self._clients.post([self._settler.fail(one, error, now) for one in self._clients.alive])
        self._settle(leaving=0)
        self._clients.send()

    def report_all(self, error: EngineError) -> None:
        """Tell all clients that their requests failed, without touching data that may be broken."""
        self._clients.abandon(error)
        self._clients.send()

    def check_invariants(self) -> None:
        """Raise InvariantBroken if the cache's counts do not add up."""
        self._cache.check_invariants()

    def stats(self, evictions: int = 0) -> EngineStats:
        """Return the present counters, and at most the last `evictions` evictions between flows."""
        return self.queries.stats(evictions)

    def _patience(self) -> float:
        if self.is_idle and (self._exchange.is_busy or self._adapters.is_asked):
            return COPY_WAIT_S
        if self.is_idle and not self._copies.pending:
            if self._cache_feed.has_more:
                return SNAPSHOT_PACE_S
            return PACE_S if self.queries.tree_views.is_surveying else IDLE_WAIT_S
        return COPY_WAIT_S if self._is_still else self._time_left()

    def _time_left(self) -> float:
        """Return the seconds until the next step has to be decided.

        A request that comes meanwhile may be in that step. If a request of another flow waits, the
        step is decided immediately, since launching a long step takes a while.
        """
        if self._is_awaited or not self._scheduler.is_bounded:
            return 0.0
        due = self._launches.due()
        return 0.0 if due is None else max(due - self._clock(), 0.0)

    def _take(self, incoming: Iterable[Incoming]) -> None:
        for client, message in incoming:
            match message:
                case RecordedFlushes():
                    for flow in message.flushes.values():
                        self._stop_check(self._sentinel.forget(flow))
                    self.queries.orders.flush_recorded(message, self._clients.alive)
                case Partition():
                    self.queries.orders.divide(message)
                case Generate():
                    self._accept(client, message)
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
                case (
                    Flush()
                    | Probe()
                    | ListMarked()
                    | ForgetMarked()
                    | DropAdapter()
                    | StatsQuery()
                    | View()
                ):
                    if isinstance(message, Flush | ForgetMarked | DropAdapter):
                        self._stop_check(self._sentinel.forget(message.flow))
                    self._clients.tell(client, self.queries.answer(message, self._clients.alive))

    def _accept(self, client: bytes, request: Generate, *, is_module: bool = False) -> None:
        try:
            self._enqueue(client, request, is_module=is_module)
        except EngineError as error:
            self._clients.refuse(client, request.request_id, error)

    def _enqueue(self, client: bytes, request: Generate, *, is_module: bool) -> None:
        if self._is_draining:
            raise EngineUnavailable("the engine is stopping", retry_after_s=RETRY_AFTER_S)
        self._clients.check_new(client, request.request_id)
        self._adapters.check(request.adapter)
        sequence = self._intake.accept(client, request, self._clock())
        if (quota := quota_of(request)) is not None:
            self._cache.quotas.set(request.flow, quota)
        is_alone = not self._scheduler.has_any_of(sequence.flow)
        queue = self._scheduler.queue
        (queue.push_module if is_module else queue.push)(sequence)
        self._is_awaited = self._is_awaited or is_alone
        self._clients.add(sequence)
        if sequence.awaits_constraint:
            self._unready.add(sequence)
        self._adapters.add(sequence, self._cache.tree.tops)
        self._modules.add(sequence)

    def _cancel(self, client: bytes, request_id: str) -> None:
        sequence = self._clients.find(client, request_id)
        if sequence is not None:  # else the request ended before the cancel arrived
            self._clients.post([self._settler.cancel(sequence, self._clock())])

    def _unpin(self, message: Unpin) -> Unpinned:
        blocks, request_id, answers = self._pins.let_go(message.pin_id, self._clock())
        if request_id is not None:
            self._cancel(OURSELVES, request_id)
        self._clients.answer(answers)
        return Unpinned(query_id=message.query_id, blocks=blocks)

    def _warm_pins(self) -> None:
        if not self._is_draining:
            for request in self._pins.due(self._clock()):
                self._accept(OURSELVES, request)

    def _check_answers(self) -> None:
        sentinel, now = self._sentinel, self._clock()
        if sentinel.running is not None:
            running = self._clients.find(OURSELVES, sentinel.running)
            waiting = (*self._scheduler.queue, *self._scheduler.loading)
            if self._is_draining or any(one is not running for one in waiting):
                self._stop_check(sentinel.give_way())
        elif sentinel.has_one and not self._is_draining:
            waiting_now = len(self._scheduler.queue) + len(self._scheduler.loading)
            request = sentinel.due(Load(len(self._clients.alive), waiting_now), now)
            if request is not None:
                self._accept(OURSELVES, request)

    def _stop_check(self, request_id: str | None) -> None:
        if request_id is not None:
            self._cancel(OURSELVES, request_id)

    def _compute_modules(self) -> None:
        turn = self._modules.turn(self._clients.alive, self._clock())
        for request in turn.started:
            self._accept(OURSELVES, request, is_module=True)
        for request_id in turn.cancelled:
            self._cancel(OURSELVES, request_id)
        now = self._clock()
        self._clients.post([self._settler.fail(one, error, now) for one, error in turn.failed])

    def _exchange_blocks(self) -> None:
        exchange, now = self._exchange, self._clock()
        exchange.turn(self._clients.find_of_any, now)
        for sequence, end, is_over in exchange.advance(now):
            is_only = is_over and sequence.fetches_only
            if end > sequence.num_computed:
                self._settler.take_fetched(sequence, end, now)
            if is_only:
                self._clients.post([self._settler.end_fetched(sequence, now)])
                if sequence.flow == PUBLISHED:
                    keys, ids = sequence.block_keys, sequence.token_ids
                    self._pins.await_pin(sequence.path, ids, keys, now)

    def _take_constraints(self) -> None:
        for sequence, error in self._unready.take(self._clients.is_alive):
            self._clients.post([self._settler.fail(sequence, error, self._clock())])

    def _give_adapters(self) -> None:
        for sequence, error in self._adapters.give(self._clients.alive, self._clock()):
            self._clients.post([self._settler.fail(sequence, error, self._clock())])
        self._clients.answer(self._adapters.answers())

    def _begin(self, scheduled: Scheduled) -> bool:
        """Launch a step and its planned copies.

        Return whether the step was launched. Usually the copies are started first, to run beside
        the step. The step is launched first if it copies within the device, since it may read
        blocks that a planned load will overwrite. With overlap, the step is also launched first if
        the device is idle and no loads are planned.
        """
        device_waits = not self._launches and not self._cache.in_flight.plans_loads
        launches_first = bool(scheduled.step.moves) or (device_waits and self._overlaps)
        if not launches_first:
            self._copies.start(self._clock())
        is_ahead = bool(scheduled.rows) and self._launches.launch(scheduled)
        if scheduled.rows and not is_ahead:
            self._clients.post(self._launches.shrink_or_fail(scheduled))
        if launches_first:
            self._copies.start(self._clock())
        self._is_still = not self._launches
        return is_ahead

    def _leaving(self, *, is_ahead: bool) -> int:
        """Return the number of steps that may stay unsettled.

        `is_ahead` tells that a step was just launched. Otherwise sequences may wait for tokens of
        launched steps, so one of these steps is settled.
        """
        if not is_ahead:
            return max(len(self._launches) - 1, 0)
        return self._most_ahead

    def _settle_drafts(self) -> None:
        """Settle the launched steps if the next step may verify drafts.

        The events of the settled steps are sent after the next step's launch. With several stages,
        launched steps have none of the next step's sequences.
        """
        if self._has_stages:
            return
        if self._launches and (self._launches.verify_drafts or self._scheduler.is_drafting):
            self._settle(leaving=0)
            self._settler.commit(self._clock())

    def _settle(self, *, leaving: int) -> None:
        while self._launches and (len(self._launches) > leaving or self.is_idle):
            self._clients.post(self._launches.settle_next())

    def _sample(self) -> None:
        refused = self._launches.sample()
        if refused:
            self._clients.post(refused)
            self._clients.send()
