from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.link.stats.engine_stats import DraftStats
from engine.link.stats.tier_stats import TierTokens
from engine.link.view_messages import Overview
from gateway.overview import history as module
from gateway.overview.history import INTERVAL_S, KEPT_S, History
from gateway.replicas.joined_views import joined_overview
from gateway.telemetry.metrics import GatewayMetrics
from gateway.views import TokensByTier
from tests.gateway.support.manual_clock import ManualClock
from tests.gateway.support.operated_engine import OperatedEngine, some_overview


def long_running(**fields: Any) -> Overview:
    """Make the overview of an engine that started before the history begins."""
    return some_overview(**{"uptime_s": 2 * KEPT_S, **fields})


class Watch:
    """A history, and the overviews that it records."""

    def __init__(self) -> None:
        self.clock, self.engine = ManualClock(), OperatedEngine()
        self.engine.seen = long_running()
        self.metrics = GatewayMetrics()
        self.history = History(self.engine, self.metrics, self.clock)

    async def look(self, seconds: float = INTERVAL_S) -> None:
        self.clock.advance(seconds)
        await self.history.look()


@pytest.fixture
def watch() -> Watch:
    return Watch()


async def test_a_sample_is_what_happened_since_the_last_look(watch: Watch) -> None:
    watch.engine.seen = long_running(found=TierTokens(10, 20, 30), computed_tokens=5)
    await watch.look()
    watch.engine.seen = long_running(
        found=TierTokens(11, 22, 33),
        computed_tokens=9,
        generated_tokens=7,
        waiting=2,
        running=3,
        loads_chosen=4,
        loads_refused=6,
    )
    await watch.look()
    (sample,) = watch.history.since(0)
    assert sample.t == watch.clock()
    assert sample.seconds == INTERVAL_S
    assert sample.hit_tokens == TokensByTier(1, 2, 3)
    assert (sample.computed_tokens, sample.generated_tokens) == (4, 7)
    assert (sample.waiting, sample.running) == (2, 3)
    assert (sample.loads_blocks, sample.recomputed_blocks) == (4, 6)


async def test_of_several_engines_one_that_restarts_or_is_late_takes_nothing_from_the_others(
    watch: Watch,
) -> None:
    def seen(**computed: int) -> Overview:
        parts = {
            name: long_running(engine_id=name, computed_tokens=tokens)
            for name, tokens in computed.items()
        }
        return joined_overview(parts, 0, 0)

    for overview in (
        seen(a=100, b=1000),
        seen(a=103, b=1004),
        seen(b=1009),
        seen(a2=2, b=1010),
        seen(a2=2),
        seen(a2=4, b=1016),
    ):
        watch.engine.seen = overview
        await watch.look()
    assert [one.computed_tokens for one in watch.history.since(0)] == [7, 5, 3, 0, 8]


async def test_latencies_are_those_of_the_interval(watch: Watch) -> None:
    watch.metrics.first_token(50.0)
    await watch.look()
    watch.metrics.first_token(0.07)
    await watch.look()
    await watch.look()
    first, second = watch.history.since(0)
    assert first.ttft_ms is not None
    assert 60 <= first.ttft_ms.p50 <= first.ttft_ms.p99 <= 80
    assert first.itl_ms is None
    assert second.ttft_ms is None


async def test_since_gives_newer_ones_alone(watch: Watch) -> None:
    for _ in range(4):
        await watch.look()
    times = [sample.t for sample in watch.history.since(0)]
    assert len(times) == 3
    assert [sample.t for sample in watch.history.since(times[0])] == times[1:]


async def test_samples_lie_on_a_grid_that_all_workers_have(watch: Watch) -> None:
    await watch.look(0.3)
    await watch.look(5.1)
    (sample,) = watch.history.since(0)
    assert sample.t % INTERVAL_S == 0


async def test_while_the_engine_is_away_there_is_no_sample(watch: Watch) -> None:
    await watch.look()
    watch.engine.connected = False
    await watch.look()
    assert watch.history.since(0) == []
    watch.engine.connected = True
    await watch.look()
    assert [sample.seconds for sample in watch.history.since(0)] == [2 * INTERVAL_S]


async def test_a_new_engine_begins_at_zero(watch: Watch) -> None:
    watch.engine.seen = long_running(computed_tokens=1000)
    await watch.look()
    watch.engine.seen = long_running(engine_id="engine-2", computed_tokens=8)
    await watch.look()
    assert [sample.computed_tokens for sample in watch.history.since(0)] == [8]


async def test_the_first_sample_has_what_a_young_engine_did_before(watch: Watch) -> None:
    watch.metrics.first_token(0.07)
    watch.engine.seen = some_overview(uptime_s=8.0, found=TierTokens(6), computed_tokens=10)
    await watch.look()
    (sample,) = watch.history.since(0)
    assert (sample.t, sample.seconds) == (watch.clock(), 8.0)
    assert (sample.computed_tokens, sample.hit_tokens.device) == (10, 6)
    assert sample.ttft_ms is not None
    await watch.look()
    assert [one.computed_tokens for one in watch.history.since(0)] == [10, 0], "once"


async def test_of_several_engines_only_the_young_count_from_their_start(watch: Watch) -> None:
    watch.metrics.first_token(0.07)
    young = some_overview(engine_id="young", uptime_s=8.0, computed_tokens=10)
    old = long_running(engine_id="old", computed_tokens=1000)
    watch.engine.seen = joined_overview({"young": young, "old": old}, 0, 0)
    await watch.look()
    (sample,) = watch.history.since(0)
    assert (sample.computed_tokens, sample.seconds, sample.ttft_ms) == (10, 8.0, None)


async def test_an_hour_is_kept(watch: Watch) -> None:
    for _ in range(int(KEPT_S / INTERVAL_S) + 10):
        await watch.look()
    samples = watch.history.since(0)
    assert samples[-1].t - samples[0].t == KEPT_S - INTERVAL_S


async def test_it_looks_by_itself_whether_or_not_anybody_asks(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)

    async with watch.history.kept():
        while not watch.history.since(0):
            watch.clock.advance(INTERVAL_S)
            await asyncio.sleep(0.001)


async def test_drafts_are_those_of_the_interval_by_source(watch: Watch) -> None:
    def seen(name: str, **drafts: int) -> Overview:
        counted = {
            source: DraftStats(drafts=n, drafted_tokens=4 * n, accepted_tokens=3 * n)
            for source, n in drafts.items()
        }
        return long_running(engine_id=name, drafts=counted)

    for overviews in (
        (seen("a", tree=10), seen("b")),
        (seen("a", tree=12, own=1), seen("b", tree=5)),
        (seen("a", tree=12, own=1), seen("b", tree=5)),
        (seen("a2", own=1), seen("b", tree=6)),
    ):
        watch.engine.seen = joined_overview({one.engine_id: one for one in overviews}, 0, 0)
        await watch.look()
    assert [
        {source: stats.accepted_tokens for source, stats in sample.drafts.items()}
        for sample in watch.history.since(0)
    ] == [{"tree": 3 * 7, "own": 3}, {}, {"own": 3, "tree": 3}]
