from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.link.interface import ReplicaHealth
from engine.link.stats.engine_stats import SentinelStats
from engine.link.stats.gap_stats import GapStats
from engine.link.stats.tier_stats import DiskStats
from gateway.overview.health import Health, health
from gateway.overview.known import ToldWorker
from gateway.replicas.joined_views import joined_overview
from gateway.state.faults import damaged, no_room
from tests.gateway.support.operated_engine import some_overview, some_tiers

OLD, NOW = 100.0, 1000.0
SEEN: dict[str, Any] = {"workers": [ToldWorker(7, OLD)], "silent": [], "now": NOW}


def by_process(found: list[Health]) -> dict[str, Health]:
    return {one.process: one for one in found}


def test_an_engine_that_answers_is_well_since_its_start() -> None:
    found = by_process(health(some_overview(), (), is_stalled=False, **SEEN))
    assert found.keys() == {"engine", "gateway"}
    assert (found["engine"].ok, found["engine"].since) == (True, NOW - 12.5)
    assert (found["gateway"].ok, found["gateway"].since) == (True, OLD)


@pytest.mark.parametrize(
    ("is_stalled", "detail"), [(True, "it does not answer"), (False, "no engine is connected")]
)
def test_an_engine_that_is_away_is_not(is_stalled: bool, detail: str) -> None:
    found = by_process(health(None, (), is_stalled=is_stalled, **SEEN))
    assert (found["engine"].ok, found["engine"].detail) == (False, detail)
    refused = by_process(health(None, (), is_stalled=False, why_absent="a key", **SEEN))
    assert (refused["engine"].ok, refused["engine"].detail) == (False, "a key")


def test_faults_are_told_by_what_they_are_of() -> None:
    faults = [damaged("limits", "limits.sqlite"), no_room("/data")]
    found = by_process(health(some_overview(), faults, is_stalled=False, **SEEN))
    assert not found["limits"].ok
    assert "damaged" in found["limits"].detail
    assert not found["data_dir"].ok


@pytest.mark.parametrize(
    ("state", "full", "ok"),
    [("up", False, True), ("starting", False, True), ("down", False, False), ("up", True, False)],
)
def test_the_disk_process_is_well_while_it_is_up(state: str, full: bool, ok: bool) -> None:
    disk = some_tiers().disk
    assert isinstance(disk, DiskStats)
    seen = some_overview(disk=msgspec.structs.replace(disk, state=state, disk_full=full))
    found = by_process(health(seen, (), is_stalled=False, **SEEN))
    assert found["disk"].ok is ok


@pytest.mark.parametrize("answers", [True, False, None])
def test_a_router_process_is_well_while_it_answers_and_is_not_there_without_one(
    answers: bool | None,
) -> None:
    found = by_process(health(None, (), is_stalled=False, router_answers=answers, **SEEN))
    assert [one.ok for name, one in found.items() if name == "router"] == (
        [] if answers is None else [answers]
    )


def test_each_worker_has_a_line_and_one_that_does_not_answer_is_not_well() -> None:
    seen = SEEN | {"workers": [ToldWorker(9, OLD), ToldWorker(7, OLD)], "silent": [8]}
    workers = [
        one for one in health(None, (), is_stalled=False, **seen) if one.process == "gateway"
    ]
    assert [(one.ok, one.detail) for one in workers] == [
        (True, "worker 7"),
        (True, "worker 9"),
        (False, "worker 8 does not answer"),
    ]


@pytest.mark.parametrize(("checked", "differed", "ok"), [(0, 0, None), (9, 0, True), (9, 1, False)])
def test_an_answer_that_differs_without_the_cache_is_told_and_one_engine_is_named(
    checked: int, differed: int, ok: bool | None
) -> None:
    seen = some_overview(sentinel=SentinelStats(checked=checked, differed=differed))
    found = by_process(health(seen, (), is_stalled=False, **SEEN))
    assert ("cache" in found) is (ok is not None)
    both = joined_overview({"0": seen, "1": some_overview()}, 1, 1)
    replicas = dict.fromkeys(("0", "1"), ReplicaHealth("ready", ""))
    named = by_process(health(both, (), is_stalled=False, **SEEN, replicas=replicas))
    assert ("cache 0" in named) is (ok is not None)
    assert "cache 1" not in named
    if ok is not None:
        assert (found["cache"].ok, found["cache"].fault) == (ok, "is wrong")
        assert f"{differed} of {checked} answers" in found["cache"].detail
        assert named["cache 0"].ok is ok


def test_a_block_that_was_damaged_in_host_memory_is_told() -> None:
    seen = some_overview(sentinel=SentinelStats(damaged_blocks=3))
    found = by_process(health(seen, (), is_stalled=False, **SEEN))
    assert not found["cache"].ok
    assert "3 blocks" in found["cache"].detail


@pytest.mark.parametrize(
    ("gaps", "ok", "detail"),
    [
        (GapStats(), None, ""),
        (GapStats(target_s=0.025), True, "99 in 100"),
        (GapStats(gaps=200, late=2, recent_gaps=200, recent_late=2), True, "99 in 100"),
        (GapStats(gaps=200, late=3, recent_gaps=200, recent_late=3), False, "1.5 %"),
        (GapStats(target_s=0.002, one_s=0.004), False, "takes 4 ms"),
    ],
)
def test_gaps_that_miss_their_targets_are_told_and_one_engine_is_named(
    gaps: GapStats, ok: bool | None, detail: str
) -> None:
    seen = some_overview(gaps=gaps)
    found = by_process(health(seen, (), is_stalled=False, **SEEN))
    both = joined_overview({"0": some_overview(), "1": seen}, 1, 1)
    assert both.gaps == gaps
    replicas = dict.fromkeys(("0", "1"), ReplicaHealth("ready", ""))
    named = by_process(health(both, (), is_stalled=False, **SEEN, replicas=replicas))
    assert "gaps 0" not in named
    assert ("gaps" in found, "gaps 1" in named) == (ok is not None, ok is not None)
    if ok is not None:
        assert (found["gaps"].ok, named["gaps 1"].ok) == (ok, ok)
        assert found["gaps"].fault == "are too long"
        assert detail in found["gaps"].detail
