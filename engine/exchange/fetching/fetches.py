"""The fetches of blocks from other engines, from a request's start to the blocks' commit.

    lease taken -> ask another engine, or not -> commit arriving blocks -> compute the other blocks

The source engine that a request names is a hint. The engine does not ask the source if computing
the blocks is predicted to be faster. It also does not ask while many fetches run, shortly after a
flush, or if the source recently failed to answer. Fetched blocks are written into blocks of the
request's lease, so their owner and quota are the same as for computed blocks.

Elsewhere: messages and transports (`client.py`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import NamedTuple

from msgspec import structs

from engine.exchange.fetching.client import BlockClient
from engine.exchange.fetching.fetch import SILENT, Fetch, Patience, Wanted, Way
from engine.exchange.fetching.rates import FetchRates
from engine.exchange.fetching.recent_flushes import FlushScope, RecentFlushes
from engine.link.messages import FetchSource
from engine.link.stats.engine_stats import FetchStats
from engine.sequences.sequence import Sequence
from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import KEY_BYTES
from prefix_cache.leases.lease import Lease

MOST_FETCHES = 16  # maximum number of concurrent fetches
REST_S = 5.0  # seconds until an engine that was silent is asked again
OVERDUE_S = 5.0  # seconds past its deadline after which a running fetch is an engine error


class FetchNeverEnded(RuntimeError):
    """An error of the engine: a fetch has not ended long after its deadline."""


class Progress(NamedTuple):
    """The progress of a sequence: the KV of its first `end` tokens has arrived."""

    sequence: Sequence
    end: int
    is_over: bool


class _Run(NamedTuple):
    first: int
    end: int
    before: int


@dataclass(slots=True)
class _UnderWay:
    fetch: Fetch | None
    began: float


@dataclass(slots=True)
class _Counts:
    """The counters of one transport of blocks.

    The time before `until` is already counted, so the time of overlapping fetches counts once.
    """

    stats: FetchStats
    until: float


class Fetches:
    """The fetches under way, and their counters. Used by one thread only."""

    def __init__(
        self, cache: PrefixCache, rates: FetchRates, client: BlockClient | None, patience: Patience
    ) -> None:
        """Fetch through `client`. Without `client`, no engine is asked."""
        self.refused = 0
        self._cache = cache
        self._rates = rates
        self._client = client
        self._patience = patience
        self._under_way: dict[Sequence, _UnderWay] = {}
        self._counts: dict[Way, _Counts] = {}
        self._resting: dict[str, float] = {}  # paused addresses, and the end of each pause
        self._flushed = RecentFlushes(self._patience.flush)

    @property
    def is_busy(self) -> bool:
        """True if any sequence waits for a fetch."""
        return bool(self._under_way)

    def begin(self, sequence: Sequence, now: float, before: int) -> None:
        source, fetch = sequence.source, None
        if source is not None and sequence.lease is not None:
            fetch = self._asked(sequence, source, sequence.lease, before)
        if fetch is None and not sequence.fetches_only:
            sequence.source = None
            return
        self._wait(sequence)
        sequence.is_fetching = True
        self._under_way[sequence] = _UnderWay(fetch, now)

    def leave(self, sequence: Sequence, now: float) -> None:
        one = self._under_way.pop(sequence, None)
        if one is not None:
            self._close(sequence, one, now)

    def flush(self, scope: FlushScope, now: float) -> None:
        """Fetch no blocks in the flushed scope for a while. Compute uncommitted blocks instead."""
        self._flushed.add(scope, time.monotonic())
        for sequence, one in self._under_way.items():
            if one.fetch is not None and scope.covers(sequence):
                self._close(sequence, one, now)
                sequence.is_fetching, one.fetch = True, None

    def advance(self, now: float) -> list[Progress]:
        """Return the progress of fetches since the last call, ended fetches included."""
        return [
            progress
            for sequence, one in list(self._under_way.items())
            if (progress := self._advance(sequence, one, now)) is not None
        ]

    def stats(self) -> dict[str, FetchStats]:
        """Return the counters by transport."""
        return {way: counts.stats for way, counts in self._counts.items()}

    def _wait(self, sequence: Sequence) -> None:
        if sequence.lease is None:
            return
        before, sequence.num_computed = sequence.num_computed, self._cache.postpone(sequence.lease)
        if sequence.admitted is None:
            found, fewer = sequence.found, before - sequence.num_computed
            sequence.found = structs.replace(found, device=found.device - fewer)

    def _asked(
        self, sequence: Sequence, source: FetchSource, lease: Lease, before: int
    ) -> Fetch | None:
        client = self._client
        if client is None:
            return None
        size = self._cache.block_size
        first, end = sequence.num_computed // size, self._end(sequence, source)
        if first >= end:
            return None
        way = client.way_of(source.address)
        run = _Run(first, end, before)
        if not self._may_ask(sequence, source, way, run):
            self.refused += 1
            return None
        wanted = Wanted(
            address=source.address,
            path=sequence.path,
            tokens=sequence.token_ids[: end * size].copy(),
            block_keys=sequence.block_keys,
            block_ids=lease.blocks.copy(),
            first=first,
            end=end,
            flow=sequence.flow,
            request_id=source.request_id,
            deadline=time.monotonic() + self._most_seconds(source, run),
            after=client.record_event(),
        )
        if lease.states is not None:
            slot = lease.states.next_out()
            units = client.units_of_state(slot)
            wanted = replace(wanted, state_slot=slot, state_units=units)
        fetch = Fetch(wanted, first, began=time.monotonic(), way=way)
        try:
            client.begin(fetch)
        # Out of file descriptors: unauthenticated peers may have opened many connections.
        except OSError:
            self.refused += 1
            return None
        return fetch

    def _end(self, sequence: Sequence, source: FetchSource) -> int:
        size = self._cache.block_size
        whole = min((sequence.prompt_len - 1) // size, len(sequence.block_keys) // KEY_BYTES)
        return whole if source.request_id is not None else min(whole, source.num_tokens // size)

    def _may_ask(self, sequence: Sequence, source: FetchSource, way: Way, run: _Run) -> bool:
        fetches = [one.fetch for one in self._under_way.values() if one.fetch is not None]
        if len(fetches) >= MOST_FETCHES or sequence.loads == "never":
            return False
        now = time.monotonic()
        if self._resting.get(source.address, 0.0) > now or self._flushed.covers(sequence, now):
            return False
        if sequence.loads == "always" or source.only or source.request_id is not None:
            return True
        waiting, before = sum(one.wanted.end - one.arrived for one in fetches), run.before
        if self._cache.quotas.are_partitions:
            waiting = before = 0  # with partitions, a flow's choice must not depend on other flows
        if sequence.lease is not None and sequence.lease.states is not None and self._client:
            waiting += len(self._client.units_of_state(0))
        return self._rates.is_worth_it(
            source.address, way, sequence.flow, run.first, run.end, before=before, waiting=waiting
        )

    def _most_seconds(self, source: FetchSource, run: _Run) -> float:
        patience = self._patience
        computing = self._rates.computing(*run)
        least = patience.least if source.request_id is None else patience.stream
        if computing is None:
            return max(least, patience.unmeasured)
        return max(least, patience.times * computing)

    def _advance(self, sequence: Sequence, one: _UnderWay, now: float) -> Progress | None:
        if sequence.lease is None or not sequence.lease.ready:
            return None
        fetch, size = one.fetch, self._cache.block_size
        if fetch is None:
            del self._under_way[sequence]
            sequence.is_fetching, sequence.source = False, None
            return Progress(sequence, sequence.num_computed, is_over=True)
        # Read in this order, because the thread sets `arrived` first.
        is_over, arrived = fetch.is_over, fetch.arrived
        if time.monotonic() > fetch.wanted.deadline + OVERDUE_S:
            raise FetchNeverEnded(f"a fetch from {fetch.wanted.address} does not end")
        if is_over:
            del self._under_way[sequence]
            self._close(sequence, one, now)
        end = arrived * size if arrived > fetch.wanted.first else sequence.num_computed
        if fetch.wanted.state_slot is not None and end > sequence.num_computed:
            self._cache.states.want(sequence.lease, [end])
            self._cache.states.launched(sequence.lease, end, fetch.wanted.state_slot)
        has_come = end > sequence.num_computed
        return Progress(sequence, end, is_over) if has_come or is_over else None

    def _close(self, sequence: Sequence, one: _UnderWay, now: float) -> None:
        sequence.is_fetching, sequence.source = False, None
        sequence.fetch_seconds += now - one.began
        fetch = one.fetch
        if fetch is None:
            return
        fetch.close()
        if not fetch.is_over and self._client is not None:
            self._client.leave(fetch)
        size = self._cache.block_size
        for label, blocks in fetch.first_reads.items():
            sequence.first_reads[label] = sequence.first_reads.get(label, 0) + blocks * size
        self._count(fetch, one.began, now)

    def _count(self, fetch: Fetch, began: float, now: float) -> None:
        counts = self._counts.setdefault(fetch.way, _Counts(FetchStats(), began))
        blocks = fetch.arrived - fetch.wanted.first
        num_bytes = 0 if self._client is None else fetch.units * self._client.block_bytes
        old = counts.stats
        counts.stats = FetchStats(
            fetches=old.fetches + 1,
            failed=old.failed + (fetch.why != ""),
            blocks=old.blocks + blocks,
            bytes=old.bytes + num_bytes,
            seconds=old.seconds + now - max(counts.until, began),
        )
        counts.until = now
        if fetch.why == SILENT:
            self._rest(fetch.wanted.address, time.monotonic())
        self._rates.learn(fetch)

    def _rest(self, address: str, now: float) -> None:
        self._resting = {one: until for one, until in self._resting.items() if until > now}
        self._resting[address] = now + REST_S
