"""Counters of a time window equal counts from a plain list, and counted flows are bounded."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from engine.link.stats.engine_stats import DraftStats, WindowStats
from engine.link.stats.tier_stats import TierTokens
from engine.scheduling.counters import OTHER_FLOWS, EngineCounters, WindowCounter
from prefix_cache.cache import PrefixCache
from tests.engine.rigs.rig import Rig, generate


def window(queried: int, hit: int, computed: int, fetched: int = 0) -> WindowStats:
    return WindowStats(
        queried_tokens=queried, hit_tokens=hit, computed_tokens=computed, fetched_tokens=fetched
    )


class TestWindows:
    def test_a_minute_forgets_and_all_does_not(self) -> None:
        counters = EngineCounters(started=0.0)
        counters.admitted("flow", 100, TierTokens(48), now=10.0, fetched=12)
        counters.computed(40, now=11.0)
        assert counters.windows(now=12.0) == dict.fromkeys(
            ("1m", "10m", "all"), window(100, 48, 40, 12)
        )
        later = counters.windows(now=70.5)
        assert later["1m"] == window(0, 0, 40)
        assert later["10m"] == later["all"] == window(100, 48, 40, 12)
        assert counters.windows(now=10_000.0)["10m"] == window(0, 0, 0)
        assert counters.windows(now=10_000.0)["all"] == window(100, 48, 40, 12)

    @given(
        gaps=st.lists(st.tuples(st.floats(0, 400), st.integers(0, 9), st.integers(0, 3))),
        seconds=st.sampled_from([1, 60, 600]),
    )
    def test_against_a_plain_list(self, gaps: list[tuple[float, int, int]], seconds: int) -> None:
        counter, entries, now = WindowCounter(), [], 0.0
        for gap, amount, column in gaps:
            now += gap
            counter.add(column, amount, now)
            entries.append((int(now), amount, column))
            sums = [0, 0, 0, 0]
            for second, counted, where in entries:
                if second > int(now) - seconds:
                    sums[where] += counted
            assert counter.window(seconds, now) == window(*sums)


class TestFlows:
    def test_counts_by_flow_with_what_the_cache_knows(self) -> None:
        rig = Rig(num_blocks=8, max_batch_tokens=64)
        rig.submit(generate("a", range(16), flow="x", max_tokens=4))
        rig.run()
        rig.submit(generate("b", range(16), flow="y", max_tokens=4))
        rig.run()
        rig.submit(generate("c", range(30, 54), flow="y", max_tokens=4))
        rig.run()
        flows = rig.core.stats().flows
        x, y = flows["x"], flows["y"]
        assert (x.requests, x.prompt_tokens, x.cached_tokens, x.generated_tokens) == (1, 16, 0, 4)
        assert (y.requests, y.prompt_tokens, y.cached_tokens, y.generated_tokens) == (2, 40, 15, 8)
        assert y.evictions_caused > 0
        assert x.evictions_suffered > 0
        pool = rig.core.stats().pool
        assert x.blocks_held + y.blocks_held == pool.used
        assert pool.used == pool.evictable + pool.leased
        assert pool.total == pool.free + pool.used == 8

    def test_a_prompt_that_another_engine_counts_is_only_computed(self) -> None:
        rig = Rig()
        for name, first, is_counted in (("a", 0, False), ("b", 16, True)):
            asked = generate(name, range(first, first + 16), max_tokens=1)
            rig.submit(msgspec.structs.replace(asked, is_counted=is_counted))
            rig.run()
            stats = rig.core.stats()
            queried = 16 * is_counted
            assert stats.windows["all"] == window(queried, 0, 16 + queried)
            flow = stats.flows["flow"]
            assert (flow.requests, flow.prompt_tokens) == (is_counted, queried)

    def test_the_report_is_a_copy(self) -> None:
        counters = EngineCounters(started=0.0)
        cache = PrefixCache(num_blocks=4, block_size=4)
        counters.admitted("a", 1, TierTokens(0), now=0.0)
        before = counters.flows(cache)
        counters.admitted("a", 1, TierTokens(0), now=0.0)
        assert before["a"].requests == 1
        assert counters.flows(cache)["a"].requests == 2

    def test_the_flow_idle_for_longest_is_merged_when_there_are_too_many(self) -> None:
        counters = EngineCounters(started=0.0, max_flows=3)
        cache = PrefixCache(num_blocks=4, block_size=4)
        for number in range(10):
            counters.admitted("busy", 1, TierTokens(0), now=0.0)
            counters.admitted(f"flow{number}", 10, TierTokens(0), now=0.0)
        flows = counters.flows(cache)
        assert set(flows) == {"busy", "flow8", "flow9", OTHER_FLOWS}
        assert flows["busy"].requests == 10
        assert flows[OTHER_FLOWS].prompt_tokens == 80
        assert sum(flow.prompt_tokens for flow in flows.values()) == 110


def test_the_engines_report() -> None:
    rig = Rig(max_running=1)
    started = rig.clock()
    rig.submit(generate("a", range(6), max_tokens=4))
    rig.submit(generate("b", range(6), max_tokens=4))
    rig.step()
    stats = rig.core.stats()
    assert (stats.running, stats.waiting, stats.steps, stats.generated_tokens) == (1, 1, 1, 1)
    assert stats.engine_id == rig.core.components.welcome.engine_id
    assert stats.uptime_s == rig.clock() - started
    rig.run()
    stats = rig.core.stats()
    assert (stats.running, stats.waiting, stats.generated_tokens) == (0, 0, 8)
    assert stats.windows["all"].queried_tokens == 12
    assert stats.windows["all"].hit_tokens + stats.windows["all"].computed_tokens == 12
    assert stats.tree_nodes > 0
    assert stats.dropped_frames == 0
    rig.link.dropped_frames = 3
    assert rig.core.stats().dropped_frames == 3


class TestDrafts:
    def test_counts_by_source(self) -> None:
        counters = EngineCounters(started=0.0)
        counters.drafted("tree", 4, 4)
        counters.drafted("own", 3, 0)
        counters.drafted("tree", 2, 1)
        assert counters.drafts == {
            "tree": DraftStats(drafts=2, drafted_tokens=6, accepted_tokens=5),
            "own": DraftStats(drafts=1, drafted_tokens=3, accepted_tokens=0),
        }
