"""The engine's loop: take messages, complete copies, schedule, launch, settle, reply, commit.

With `overlap_scheduling`, a step is settled after the next step's launch. The device then computes
while the host appends tokens and writes messages:

    host    | schedule n+1, launch | wait for n, settle n, reply | schedule n+2, launch | wait...
    device  |  step n .....................| step n+1 .................................| step n+2

A step that verifies drafts is settled before the next step is scheduled. With several pipeline
stages, the stages compute steps of different sequences at the same time. If a step has rows with
constraints, its sampling is launched after the replies and the commit. The rows' token masks are
computed in the meantime.

Elsewhere: the effects of messages, the engine's own requests, and the times of steps (`in_flight`),
the copies (`copies.py`), and the end of the process (`process.py`).
"""

from __future__ import annotations

from engine.components import Components
from engine.copies import COPY_WAIT_S
from engine.errors import EngineError
from engine.in_flight.clients import Clients
from engine.in_flight.engine_requests import EngineRequests
from engine.in_flight.inbox import Inbox
from engine.in_flight.launches import Launches
from engine.in_flight.unready import Unready
from engine.link.messages import Generate
from engine.link.stats.engine_stats import EngineStats
from engine.queries.cache_feed import SNAPSHOT_PACE_S, CacheFeed
from engine.queries.queries import Queries
from engine.queries.tree_views import PACE_S
from engine.scheduling.scheduled_rows import Scheduled, ScheduledRow
from engine.sequences.pins import OURSELVES
from prefix_cache.eviction.shares import PUBLISHED

IDLE_WAIT_S = 0.1
SAVED_AT_ONCE = 256
MOST_CHECKED = 2048  # maximum size of a tree, in nodes, that is checked while serving


class EngineCore:
    """The data and the loop of one engine. Used by one thread only."""

    def __init__(self, components: Components) -> None:
        self.components = components
        self.queries = Queries(components)
        self._link = components.link
        self._scheduler = components.scheduler
        self._settler = components.settler
        self._cache = components.cache
        self._pins = components.pins
        self._modules = components.modules
        self._copies = components.copies
        self._exchange = components.exchange
        self._adapters = components.adapters
        self._clients = Clients(components)
        self._unready = Unready()
        self._launches = Launches(components)
        self._cache_feed = CacheFeed(components.cache.tree)
        self._inbox = Inbox(
            components, self._clients, self._unready, self.queries, self._cache_feed
        )
        self._engine_requests = EngineRequests(components, self._clients, self._inbox)
        self._clock = components.clock
        self._overlaps = components.overlap_scheduling
        self._has_stages = components.stages > 1
        self._most_ahead = max(components.stages - 1, int(components.overlap_scheduling))
        self._is_still = False

    @property
    def is_idle(self) -> bool:
        """True if no request is waiting or running."""
        return not self._clients.alive

    @property
    def is_quickly_checked(self) -> bool:
        """True if `check_invariants` takes at most about 0.1 s.

        A check takes up to 60 us for each node of the cache's tree. Large trees are not checked
        while requests may arrive, because the check of a million nodes takes a minute.
        """
        return self._cache.tree.num_nodes <= MOST_CHECKED

    def step(self) -> None:
        """Run one iteration of the loop. Without work, wait a moment for messages."""
        self._inbox.take(self._link.receive(timeout_s=self._patience()))
        if self._inbox.waits_for_flushes:
            self._inbox.waits_for_flushes = self._prune()
            if self._inbox.waits_for_flushes:
                return
        self._copies.complete(self._clock())
        self._exchange_blocks()
        self._engine_requests.turn()
        self._take_constraints()
        self._give_adapters()
        launched = tuple[ScheduledRow, ...]()
        if not self._time_left():
            self._settle_drafts()
            began = self._clock()
            self._inbox.is_awaited = False
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
        if self._launches:  # the device is computing, so the host has time
            self._scheduler.prepare_drafts(launched)
        self._prune()
        self._cache_feed.publish(self._link.send)
        self.queries.tree_views.advance()

    def run_own(self, request: Generate) -> None:
        """Run one of the engine's own requests to its end. A refused request ends immediately."""
        self._inbox.accept(OURSELVES, request)
        while self._clients.find(OURSELVES, request.request_id) is not None:
            self.step()

    def spill(self, seconds: float) -> None:
        """Write the blocks that are not on disk yet, hottest first, for at most `seconds`.

        All requests must have ended. New requests are refused during the call. First, the blocks
        that commands drop are dropped.
        """
        copies = self._copies
        give_up = self._clock() + seconds
        is_pruning = self._prune()
        while self._clock() < give_up:
            copies.complete(self._clock())
            num_copies = 0 if is_pruning else self._cache.restart.save(SAVED_AT_ONCE)
            copies.start(self._clock())
            if not is_pruning and not num_copies and not copies.pending:
                return
            wait_s = 0.0 if is_pruning else COPY_WAIT_S
            self._inbox.take(self._link.receive(timeout_s=wait_s))
            is_pruning = self._prune()
            self._clients.send()

    def drain(self) -> None:
        """Refuse new requests from now on. Accepted requests continue."""
        self._inbox.is_draining = True

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

    def _prune(self) -> bool:
        """Drop blocks for some milliseconds, if commands ask for it. Return whether more is left.

        Reply to the commands that are done.
        """
        self.queries.prunings.advance(self._clients.alive)
        self._clients.answer(self.queries.orders.replies())
        return bool(self.queries.prunings)

    def _patience(self) -> float:
        if self.is_idle and self.queries.prunings:
            return 0.0
        if self.is_idle and (self._exchange.is_busy or self._adapters.is_asked):
            return COPY_WAIT_S
        if self.is_idle and not self._copies.pending:
            if self._cache_feed.has_more:
                return SNAPSHOT_PACE_S
            return PACE_S if self.queries.tree_views.is_surveying else IDLE_WAIT_S
        return COPY_WAIT_S if self._is_still else self._time_left()

    def _time_left(self) -> float:
        """Return the seconds until the next step has to be decided.

        A request that arrives before then can still join the step. If a request of another flow is
        waiting, return 0, because the launch of a long step takes too long.
        """
        if self._inbox.is_awaited or not self._scheduler.is_bounded:
            return 0.0
        due = self._launches.due()
        return 0.0 if due is None else max(due - self._clock(), 0.0)

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

        Return whether the step was launched. Usually the copies are started first, to run
        concurrently with the step. The step is launched first if it copies blocks within the
        device, because it may read blocks that a planned load will overwrite. With overlapped
        scheduling, the step is also launched first if the device is idle and no loads are planned.
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
        """Return the number of launched steps that may stay unsettled.

        `is_ahead` is True if a step was just launched. If not, sequences may be waiting for tokens
        of launched steps, so one of these steps must be settled.
        """
        if not is_ahead:
            return max(len(self._launches) - 1, 0)
        return self._most_ahead

    def _settle_drafts(self) -> None:
        """Settle the launched steps if the next step may verify drafts.

        The events of the settled steps are sent after the next step's launch. With several stages,
        the launched steps and the next step have no sequences in common.
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
