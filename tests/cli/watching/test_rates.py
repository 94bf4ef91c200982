"""The rates cover the time between two readings of an engine's counters, or since its start if
there is one reading.

The gateway's own code computes them.
"""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cli.watching.rates import tables
from engine.link.interface import ReplicaHealth
from engine.link.stats.engine_stats import DraftStats, EngineStats, SentinelStats, WindowStats
from engine.link.stats.flow_stats import FlowStats
from engine.link.stats.tier_stats import LowerStates, StateStats, TierTokens
from gateway.admin.cache.cache_stats import cache_stats
from gateway.replicas.joined_stats import joined_stats
from tests.gateway.support.operated_engine import some_stats, some_tiers


def stats_at(uptime_s: float, *, asked: int, found: TierTokens, generated: int) -> EngineStats:
    window = WindowStats(queried_tokens=asked, hit_tokens=found.total, computed_tokens=asked // 2)
    flow = FlowStats(
        requests=asked // 10,
        prompt_tokens=asked,
        cached_tokens=found.total,
        generated_tokens=generated,
        blocks_held=7,
    )
    return replace(
        some_stats(flows={"tn_1": flow, "tn_2": FlowStats()}),
        uptime_s=uptime_s,
        generated_tokens=generated,
        windows={"all": window},
        tiers=replace(some_tiers(), found=found),
    )


def told(stats: EngineStats) -> dict[str, Any]:
    answer: dict[str, Any] = msgspec.to_builtins(cache_stats(stats, {"tn_1": "acme"}))
    return answer


EARLIER = told(stats_at(10.0, asked=1000, found=TierTokens(100, 50, 0), generated=40))
LATER = told(stats_at(14.0, asked=1800, found=TierTokens(300, 50, 80), generated=440))


def test_rates_are_of_the_time_between_two_readings() -> None:
    engine, tiers, tenants = tables(LATER, EARLIER)
    assert engine.title == "Engine in 4.0 s"
    assert engine.rows == (
        ("generated tokens/s", "100.0"),
        ("computed prompt tokens/s", "100.0"),
        ("running", "3"),
        ("waiting", "4"),
    )
    assert tiers.rows == (
        ("device", "40", "100", "40%", "25.0%"),
        ("host", "4", "9", "44%", "0.0%"),
    )
    assert tenants.rows == (
        ("acme", "20.0", "200.0", "35.0%", "100.0", "7"),
        ("tn_2 (deleted)", "0.0", "0.0", "-", "0.0", "0"),
    )


@pytest.mark.parametrize("before", [None, {**EARLIER, "engine_id": "one before it"}])
def test_without_an_earlier_reading_rates_are_since_the_start(
    before: dict[str, Any] | None,
) -> None:
    engine, tiers, tenants = tables(EARLIER, before)
    assert engine.title == "Engine since its start"
    assert engine.rows[0] == ("generated tokens/s", "4.0")
    assert tiers.rows[0][-1] == "10.0%"
    assert tenants.rows[0][:3] == ("acme", "10.0", "100.0")


def test_where_nothing_happened_nothing_is_divided() -> None:
    engine, tiers, _ = tables(EARLIER, EARLIER)
    assert engine.rows[0][1] == "-"
    assert tiers.rows[0][-1] == "-"


def test_engines_have_roles_ranks_and_states() -> None:
    two = replace(some_stats(flows={}), engine_id="0", tensor_parallel=2, pipeline_parallel=2)
    replicas = {
        "0": ReplicaHealth("ready", "", role="decode"),
        "1": ReplicaHealth("handshake_failed", "another key", role="prefill"),
    }
    joined = joined_stats({"0": two}, 0)
    answer: dict[str, Any] = msgspec.to_builtins(cache_stats(joined, {}, replicas))
    _, engines, *_ = tables(answer, None)
    assert engines.heads[:4] == ("replica", "role", "ranks", "state")
    assert [row[:4] for row in engines.rows] == [
        ("0", "decode", "TP 2 x PP 2", "ready"),
        ("1", "prefill", "-", "handshake_failed"),
    ]


def test_one_engine_alone_has_a_row_of_its_ranks_where_there_are_several() -> None:
    engine, *_ = tables(told(replace(some_stats(flows={}), tensor_parallel=2)), None)
    assert engine.rows[-1] == ("ranks", "TP 2 x PP 1")


def test_a_router_process_has_a_row_where_there_is_one() -> None:
    answer = told(some_stats(flows={}))
    for answers, rows in (
        (True, [("router", "answers")]),
        (False, [("router", "no answer")]),
        (None, []),
    ):
        engine, *_ = tables(answer | {"router_answers": answers}, None)
        assert [row for row in engine.rows if row[0] == "router"] == rows


def test_only_the_busiest_tenants_are_shown() -> None:
    flows = {f"tn_{n:03}": FlowStats(prompt_tokens=n) for n in range(100)}
    answer = told(some_stats(flows=flows))
    for tenant in answer["tenants"]:
        tenant["name"] = tenant["id"]
    *_, tenants = tables(answer, None)
    assert len(tenants.rows) == 20
    assert tenants.rows[0][0] == "tn_099"


def test_deleted_tenants_are_one_row_of_what_happened_between() -> None:
    flows = {f"tn_{n}": FlowStats(prompt_tokens=10, cached_tokens=5) for n in range(4)}
    before = told(some_stats(flows=flows))
    flows["tn_2"] = FlowStats(prompt_tokens=40, cached_tokens=20, blocks_held=3)
    now = told(some_stats(flows=flows)) | {"uptime_s": before["uptime_s"] + 10}
    *_, tenants = tables(now, before)
    assert tenants.rows[0] == ("3 deleted tenants", "0.0", "3.0", "50.0%", "0.0", "3")
    assert [row[0] for row in tenants.rows[1:]] == ["acme"]


def test_drafts_have_a_table_by_source_once_there_are_any() -> None:
    def drafted(**sources: tuple[int, int, int]) -> dict[str, Any]:
        drafts = {
            name: DraftStats(drafts=count, drafted_tokens=drafted, accepted_tokens=accepted)
            for name, (count, drafted, accepted) in sources.items()
        }
        return told(replace(some_stats(flows={}), drafts=drafts))

    nothing, before = drafted(), drafted(tree=(10, 40, 30), own=(5, 10, 0))
    after = drafted(tree=(14, 56, 38), own=(5, 10, 0), grammar=(2, 2, 2))
    assert [table.title for table in tables(nothing, None)] == [
        "Engine since its start",
        "Cache (blocks)",
        "Tenants",
    ]
    _, since_start, *_ = tables(before, None)
    assert since_start.rows == (
        ("own", "5", "10", "0.0%", "0.00"),
        ("tree", "10", "40", "75.0%", "3.00"),
    )
    _, between, *_ = tables(after, before)
    assert between.title == "Drafts"
    assert between.rows == (
        ("grammar", "2", "2", "100.0%", "1.00"),
        ("tree", "4", "16", "50.0%", "2.00"),
    )


def test_checkpoints_have_a_table_where_the_model_has_states() -> None:
    def kept(**counts: int) -> dict[str, Any]:
        lower = {"host": LowerStates(total=9, used=1)}
        states = StateStats(total=60, free=20, checkpoints=31, lower=lower)
        return told(replace(some_stats(flows={}), states=replace(states, **counts)))

    before = kept(hits=4, made=9, evicted=1, refused=0, cut_tokens=160)
    after = kept(hits=9, made=11, evicted=2, refused=3, cut_tokens=192)
    _, table, *_ = tables(after, before)
    assert (table.title, table.heads[0], table.heads[-1]) == ("Checkpoints", "held", "tokens cut")
    assert table.rows == (("31 of 60, host 1 of 9", "5", "2", "1", "3", "32"),)
    _, since_start, *_ = tables(before, None)
    assert since_start.rows == (("31 of 60, host 1 of 9", "4", "9", "1", "0", "160"),)


def test_answers_that_differ_without_the_cache_come_first_and_red() -> None:
    well, wrong = (
        told(replace(some_stats(flows={}), sentinel=SentinelStats(checked=9, differed=differed)))
        for differed in (0, 2)
    )
    assert not any(table.is_alarm for table in tables(well, None))
    alarm, *others = tables(wrong, None)
    assert alarm.is_alarm
    assert alarm.rows[0][:3] == ("2", "9", "0")
    assert not any(table.is_alarm for table in others)
