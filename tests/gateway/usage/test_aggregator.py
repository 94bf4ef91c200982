from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from engine.link.event_messages import WrittenAndRead
from gateway.caller import Caller
from gateway.errors import Unavailable
from gateway.state.usage_records import Counters, UsageRow
from gateway.usage.aggregator import UsageAggregator, UsageKey, day_of
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.manual_clock import ManualClock

ADA = Caller("tn_ada", "key_1")
MIDNIGHT = 1_767_225_600.0  # 2026-01-01T00:00:00Z


class ShakyLedger(MemoryStore):
    """A ledger that loses a given number of batches, or of their replies."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0
        self.unanswered = 0
        self.stored = asyncio.Event()

    async def add_usage(self, rows: Sequence[UsageRow], *, batch: str) -> None:
        if self.lost:
            self.lost -= 1
            raise Unavailable("lost")
        await super().add_usage(rows, batch=batch)
        self.stored.set()
        if self.unanswered:
            self.unanswered -= 1
            raise Unavailable("unanswered")


def count(aggregator: UsageAggregator, caller: Caller = ADA, **counters: Any) -> None:
    wanted = {"computed_tokens": 10, "cached_tokens": 20, "generated_tokens": 3, **counters}
    aggregator.add(caller, Counters(requests=1, **wanted))


async def rows(usage_store: MemoryStore) -> list[UsageRow]:
    return await usage_store.usage("2025-01-01", "2027-01-01")


async def test_requests_add_up_by_key_and_day() -> None:
    usage_store, clock = ShakyLedger(), ManualClock(MIDNIGHT - 1)
    aggregator = UsageAggregator(usage_store, clock)
    count(aggregator)
    count(aggregator, computed_tokens=1)
    count(aggregator, Caller("tn_ada", "key_2"))
    clock.advance(1)
    count(aggregator)
    await aggregator.store()
    stored = await rows(usage_store)
    assert [(r.day, r.key_id, r.counters.requests) for r in stored] == [
        ("2025-12-31", "key_1", 2),
        ("2025-12-31", "key_2", 1),
        ("2026-01-01", "key_1", 1),
    ]
    assert stored[0].counters == Counters(
        requests=2, computed_tokens=11, cached_tokens=40, generated_tokens=6
    )


async def test_nothing_is_stored_twice() -> None:
    usage_store = ShakyLedger()
    aggregator = UsageAggregator(usage_store, ManualClock(MIDNIGHT))
    count(aggregator)
    await aggregator.store()
    await aggregator.store()
    assert (await rows(usage_store))[0].counters.requests == 1
    assert len(usage_store.batches) == 1  # nothing was counted, so nothing is sent


@pytest.mark.parametrize("fault", ["lost", "unanswered"])
async def test_a_ledger_that_is_away_gets_everything_once_it_is_back(fault: str) -> None:
    usage_store = ShakyLedger()
    setattr(usage_store, fault, 2)
    aggregator = UsageAggregator(usage_store, ManualClock(MIDNIGHT))
    for _ in range(3):
        count(aggregator)
        if getattr(usage_store, fault):
            with pytest.raises(Unavailable):
                await aggregator.store()
    await aggregator.store()
    await aggregator.store()
    [row] = await rows(usage_store)
    assert row.counters.requests == 3


async def test_many_keys_go_in_several_batches() -> None:
    usage_store = ShakyLedger()
    aggregator = UsageAggregator(usage_store, ManualClock(MIDNIGHT))
    for number in range(1200):
        count(aggregator, Caller("tn_ada", f"key_{number}"))
    await aggregator.store()
    assert len(await rows(usage_store)) == 1200
    assert len(usage_store.batches) == 3


async def test_it_is_stored_regularly_and_at_the_end() -> None:
    usage_store = ShakyLedger()
    aggregator = UsageAggregator(usage_store, ManualClock(MIDNIGHT))
    async with aggregator.stored_regularly(interval_s=0.001):
        count(aggregator)
        async with asyncio.timeout(60):
            await usage_store.stored.wait()
    async with aggregator.stored_regularly(interval_s=3600):
        usage_store.lost = 0
        count(aggregator)
    assert (await rows(usage_store))[0].counters.requests == 2


async def test_what_cannot_be_stored_at_the_end_is_said(caplog: pytest.LogCaptureFixture) -> None:
    usage_store = ShakyLedger()
    usage_store.lost = 1000
    aggregator = UsageAggregator(usage_store, ManualClock(MIDNIGHT))
    async with aggregator.stored_regularly(interval_s=3600):
        count(aggregator)
    assert "usage of 1 keys could not be stored" in caplog.text


async def test_what_nobody_measured_is_not_0() -> None:
    usage_store = ShakyLedger()
    aggregator = UsageAggregator(usage_store, ManualClock(MIDNIGHT))
    count(aggregator)
    await aggregator.store()
    counters = (await rows(usage_store))[0].counters
    assert (counters.engine_ms, counters.saved_ms) == (None, None)


async def test_what_is_measured_adds_up_and_what_comes_late_is_no_request() -> None:
    usage_store = ShakyLedger()
    aggregator = UsageAggregator(usage_store, ManualClock(MIDNIGHT))
    count(aggregator)
    count(aggregator, engine_ms=1.5, saved_ms=2.25)
    aggregator.add(ADA, Counters(engine_ms=4.0))
    await aggregator.store()
    aggregator.add(ADA, Counters(engine_ms=8.0))
    await aggregator.store()
    counters = (await rows(usage_store))[0].counters
    assert counters.requests == 2
    assert (counters.engine_ms, counters.saved_ms) == (13.5, 2.25)


def test_days_are_utc() -> None:
    assert day_of(MIDNIGHT) == "2026-01-01"
    assert day_of(MIDNIGHT - 0.001) == "2025-12-31"


BOB = Caller("tn_bob", "key_9")


async def test_what_is_written_and_read_counts_by_the_writer_s_key_and_day() -> None:
    """Count written and read tokens by the writer's key and day.

    Ada writes on one day. Bob, who shares Ada's cache, reads on the next day.
    """
    usage_store, clock = ShakyLedger(), ManualClock(MIDNIGHT - 1)
    aggregator = UsageAggregator(usage_store, clock)
    ada = aggregator.writer(ADA)
    clock.advance(2)  # Ada's request came before midnight, and ends after midnight
    count(aggregator)
    aggregator.add_cache(ada, WrittenAndRead(64))
    await aggregator.store()
    count(aggregator, BOB)
    aggregator.add_cache(aggregator.writer(BOB), WrittenAndRead(16, {ada: 48}))
    await aggregator.store()
    found = {
        (row.day, row.key_id): (row.counters.cache_written_tokens, row.counters.cache_read_tokens)
        for row in await rows(usage_store)
    }
    assert found == {
        ("2025-12-31", "key_1"): (64, 48),
        ("2026-01-01", "key_1"): (0, 0),
        ("2026-01-01", "key_9"): (16, 0),
    }
    assert sum(row.counters.requests for row in await rows(usage_store)) == 2


async def test_a_reader_and_the_row_that_it_reads_are_stored_together() -> None:
    usage_store = ShakyLedger()
    aggregator = UsageAggregator(usage_store, ManualClock(MIDNIGHT))
    usage_store.unanswered = 1
    count(aggregator, BOB)
    aggregator.add_cache(aggregator.writer(BOB), WrittenAndRead(0, {aggregator.writer(ADA): 48}))
    with pytest.raises(Unavailable):
        await aggregator.store()
    await aggregator.store()
    assert len(usage_store.batches) == 1
    assert [row.counters.cache_read_tokens for row in await rows(usage_store)] == [48, 0]


async def test_nothing_written_and_nothing_read_makes_no_row() -> None:
    usage_store = ShakyLedger()
    aggregator = UsageAggregator(usage_store, ManualClock(MIDNIGHT))
    aggregator.add_cache(aggregator.writer(ADA), WrittenAndRead())
    await aggregator.store()
    assert await rows(usage_store) == []


async def test_a_label_of_nobody_s_is_dropped_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    usage_store = ShakyLedger()
    aggregator = UsageAggregator(usage_store, ManualClock(MIDNIGHT))
    known = UsageKey("2025-12-30", "tn_ada", "key_1").label()
    for _ in range(3):
        aggregator.add_cache("v0:tn_ada", WrittenAndRead(16, {"secret of old": 16, known: 32}))
    await aggregator.store()
    [row] = await rows(usage_store)
    assert (row.day, row.counters) == ("2025-12-30", Counters(cache_read_tokens=96))
    assert len(caplog.records) == 1
    assert "secret" not in caplog.text
