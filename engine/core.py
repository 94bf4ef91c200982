"""The step: take -> settle copies -> schedule -> launch -> settle tokens -> reply -> commit.

With `steps_ahead` 1 a step is settled after the next one was launched, so that the device
computes while tokens are appended, stops found and messages written; with 0 each step is settled
at once:

    host    | schedule n+1, launch | wait for n, settle n, reply | schedule n+2, launch | wait...
    device  |  step n .....................| step n+1 .................................| step n+2

Copies between tiers go on beside it (`copies.py`): those that have ended are reported to the cache
before a step is scheduled, those that it has planned are begun after.

Knows: which requests are alive, and in what order things happen. Does not know: how any of
these is done; how long steps take (`launches.py`); nor signals, the process, or its end
(`process.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from engine.copies import COPY_WAIT_S
from engine.errors import EngineError, EngineUnavailable, InvalidRequest
from engine.intake import quota_of
from engine.launches import Launches
from engine.link import Incoming
from engine.messages import (
    Cancel,
    Event,
    Flush,
    Flushed,
    FromEngine,
    Generate,
    Hello,
    Pin,
    StatsQuery,
    StatsReply,
    StepReply,
    Unpin,
    Unpinned,
)
from engine.parts import Parts
from engine.pins import OURSELVES, Answer
from engine.report import report
from engine.sequence import Sequence
from engine.settle import Reply, failed
from engine.stats_messages import EngineStats
from engine.step import Step
from prefix_cache.namespace import Namespace

IDLE_WAIT_S = 0.1
SAVED_AT_ONCE = 256  # blocks begun in one turn of `spill`
RETRY_AFTER_S = 2.0  # told to clients of an engine that drains: its successor is up by then


class EngineCore:
    """One engine's state and its step. One owner thread."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._link = parts.link
        self._scheduler = parts.scheduler
        self._settler = parts.settler
        self._alive: dict[tuple[bytes, str], Sequence] = {}
        self._launches = Launches(parts)
        self._outbox: list[Reply] = []
        self._is_still = False  # no step is on its way
        self._is_awaited = False  # a flow that had nothing alive waits for the next step
        self._is_draining = False

    @property
    def is_idle(self) -> bool:
        """Whether no request is alive."""
        return not self._alive

    def step(self) -> None:
        """One turn of the engine; waits a moment for messages when there is nothing to do."""
        self._take(self._link.receive(timeout_s=self._patience()))
        self.parts.copies.settle(self.parts.clock())
        self._warm_pins()
        if not self._time_left():
            began = self.parts.clock()
            self._is_awaited = False
            step = self._scheduler.schedule(began, max_tokens=self._launches.budget)
            is_ahead = self._begin(step)
            if is_ahead:
                self._launches.decided(self.parts.clock() - began)
            self._settle(leaving=self.parts.steps_ahead if is_ahead else 0)
        self._reply()
        self._settler.commit(self.parts.clock())

    def spill(self, seconds: float) -> None:
        """Write blocks to disk that are not there, hottest first, for at most `seconds`.

        Called after all requests have ended; requests that arrive meanwhile are refused.
        """
        cache, copies = self.parts.cache, self.parts.copies
        give_up = self.parts.clock() + seconds
        while self.parts.clock() < give_up:
            copies.settle(self.parts.clock())
            begun = cache.restart.save(SAVED_AT_ONCE)
            copies.start(self.parts.clock())
            if not begun and not copies.pending:
                return
            self._take(self._link.receive(timeout_s=COPY_WAIT_S))
            self._reply()

    def drain(self) -> None:
        """From now on refuse new requests; those alive run on."""
        self._is_draining = True

    def fail_all(self, error: EngineError) -> None:
        """End every request that is alive with `error`, and tell its client."""
        now = self.parts.clock()
        self._post([self._settler.fail(one, error, now) for one in self._alive.values()])
        self._settle(leaving=0)
        self._reply()

    def report_all(self, error: EngineError) -> None:
        """Tell all clients that their requests failed; touches no state that may be broken."""
        self._outbox += [failed(one.client, one.request_id, error) for one in self._alive.values()]
        self._alive.clear()
        self._reply()

    def check_invariants(self) -> None:
        """Raise InvariantBroken where the cache's counts do not add up."""
        self.parts.cache.check_invariants()

    def stats(self, evictions: int = 0) -> EngineStats:
        """The counters as they are now, and at most `evictions` of the last ones between flows."""
        return report(self.parts, evictions)

    # Take

    def _patience(self) -> float:
        """Seconds to wait for messages."""
        if self.is_idle and not self.parts.copies.pending:
            return IDLE_WAIT_S
        return COPY_WAIT_S if self._is_still else self._time_left()

    def _time_left(self) -> float:
        """Seconds until the next step has to be decided; 0 unless a visitor may come by then.

        A request that comes within that time is in that step, and waits for no other. Once it is
        there, the step is decided at once, since launching a long one takes the host a while.
        """
        if self._is_awaited:
            return 0.0
        now = self.parts.clock()
        due = self._launches.due() if self._scheduler.visitors.may_come(now) else None
        return 0.0 if due is None else max(due - now, 0.0)

    def _take(self, incoming: Iterable[Incoming]) -> None:
        for client, message in incoming:
            match message:
                case Generate():
                    self._accept(client, message)
                case Cancel():
                    self._cancel(client, message)
                case Hello():
                    self._tell(client, self.parts.welcome)
                case Flush():
                    self._tell(client, self._flush(message))
                case Pin():
                    self._answer(self.parts.pins.ask(client, message, self.parts.clock()))
                case Unpin():
                    self._tell(client, self._unpin(message))
                case StatsQuery():
                    stats = self.stats(message.evictions)
                    self._tell(client, StatsReply(query_id=message.query_id, stats=stats))

    def _accept(self, client: bytes, request: Generate) -> None:
        try:
            self._enqueue(client, request)
        except EngineError as error:
            self._outbox.append(failed(client, request.request_id, error))

    def _enqueue(self, client: bytes, request: Generate) -> None:
        if self._is_draining:
            raise EngineUnavailable("the engine is stopping", retry_after_s=RETRY_AFTER_S)
        if (client, request.request_id) in self._alive:
            raise InvalidRequest("this request id is already running")
        sequence = self.parts.intake.accept(client, request, self.parts.clock())
        quota = quota_of(request)
        if quota is not None:
            self.parts.cache.set_quota(request.flow, quota)
        is_alone = not self._scheduler.has_any_of(sequence.flow)
        self._scheduler.queue.push(sequence)
        self._is_awaited = self._is_awaited or is_alone
        self._alive[client, request.request_id] = sequence

    def _cancel(self, client: bytes, message: Cancel) -> None:
        sequence = self._alive.get((client, message.request_id))
        if sequence is not None:  # else it ended while the cancel was on its way
            self._post([self._settler.cancel(sequence, self.parts.clock())])

    def _flush(self, message: Flush) -> Flushed:
        namespace = None if message.namespace is None else Namespace(message.namespace)
        blocks = self.parts.cache.flush(namespace=namespace, owner=message.flow)
        if message.flow is not None and namespace is None:
            self._forget_flow(message.flow)
            self.parts.cache.quotas.forget(message.flow)
        return Flushed(query_id=message.query_id, blocks=blocks)

    def _forget_flow(self, flow: str) -> None:
        """Make its records on disk unreadable, and keep what still runs of it out of the cache."""
        for sequence in self._alive.values():
            if sequence.flow == flow:
                self._scheduler.holdings.keep_out(sequence)
        self.parts.copies.forget_owner(flow)

    def _unpin(self, message: Unpin) -> Unpinned:
        blocks, request_id, answers = self.parts.pins.let_go(message.pin_id, self.parts.clock())
        if request_id is not None:
            self._cancel(OURSELVES, Cancel(request_id))
        self._answer(answers)
        return Unpinned(query_id=message.query_id, blocks=blocks)

    def _warm_pins(self) -> None:
        """Start to compute prefixes that are to be pinned and are not in the cache."""
        if not self._is_draining:
            for request in self.parts.pins.due(self.parts.clock()):
                self._accept(OURSELVES, request)

    # Launch and settle

    def _begin(self, step: Step) -> bool:
        """Launch the step and begin the copies planned with it; whether the step is on its way.

        The copies are begun first, so that they run beside the step. It is launched first where it
        copies within the device itself, since it may read blocks that were given to a load since;
        and where the device has nothing else to do and only copies down are planned, which have
        time. (Without a step ahead it is over when it has been launched.)
        """
        device_waits = not self._launches and not self.parts.cache.plans_loads
        launches_first = bool(step.moves) or (device_waits and self.parts.steps_ahead > 0)
        if not launches_first:
            self.parts.copies.start(self.parts.clock())
        is_ahead = bool(step.rows) and self._launch(step)
        if launches_first:
            self.parts.copies.start(self.parts.clock())
        self._is_still = not self._launches
        return is_ahead

    def _launch(self, step: Step) -> bool:
        """Send the step on its way; False when the device had no room for it."""
        if self._launches.launch(step):
            return True
        self._post(self._launches.shrink_or_fail(step))
        return False

    def _settle(self, *, leaving: int) -> None:
        """Settle the steps on their way except the last `leaving`; all of them when idle."""
        while self._launches and (len(self._launches) > leaving or self.is_idle):
            self._post(self._launches.settle_next())

    # Reply

    def _post(self, replies: list[Reply]) -> None:
        """Queue replies to be sent; the last event of a sequence ends its life here."""
        for reply in replies:
            if reply.is_last:
                del self._alive[reply.client, reply.event.request_id]
        self._outbox += replies

    def _reply(self) -> None:
        outbox, self._outbox = self._outbox, []
        by_client: defaultdict[bytes, list[Event]] = defaultdict(list)
        for client, event in outbox:
            if client == OURSELVES:
                self._answer(self.parts.pins.heard(event, self.parts.clock()))
            else:
                by_client[client].append(event)
        for client, events in by_client.items():
            self._tell(client, StepReply(events))

    def _answer(self, answers: Iterable[Answer]) -> None:
        for client, message in answers:
            self._tell(client, message)

    def _tell(self, client: bytes, message: FromEngine) -> None:
        """Send a message; cancel all requests of a client that is gone."""
        if self._link.send(client, message):
            return
        now = self.parts.clock()
        for owner, request_id in [key for key in self._alive if key[0] == client]:
            self._settler.cancel(self._alive.pop((owner, request_id)), now)
