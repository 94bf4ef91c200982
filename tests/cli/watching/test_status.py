"""`ratoon status` shows a working server on one screen, and reports each fault of a server.

The gateway is real, with a fake engine.
"""

import asyncio

import pytest
from msgspec.structs import replace

from engine.errors import EngineUnavailable
from engine.link.interface import ReplicaHealth
from engine.link.query_messages import StatsQuery, StatsReply
from engine.link.stats.engine_stats import SentinelStats
from engine.link.stats.gap_stats import GapStats
from gateway.replicas.joined_stats import joined_stats
from tests.cli.console import Console, Ratoon
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import Served


def test_a_server_that_works_is_shown_in_one_screen(ratoon: Ratoon, gateway: Served) -> None:
    printed = ratoon("status")
    assert printed.status == 0
    lines = [line.split("\t") for line in printed.out.splitlines()]
    assert ["server", "ready", gateway.url] in lines
    assert ["engine", "answers", "0 running, 0 waiting, up for 1 s"] in lines
    assert ["device", "0", "1", "0%"] in lines
    found = ratoon("status --json").json
    assert found["health"]["status"] == "ready"
    assert found["cache"]["engine_id"] == "fake"


def test_without_an_engine_it_says_so_and_exits_with_1(
    ratoon: Ratoon, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: object) -> None:
        raise EngineUnavailable("none")

    monkeypatch.setattr(engine, "welcome", None)
    monkeypatch.setattr(engine, "answer", refuse)
    printed = ratoon("status")
    assert printed.status == 1
    lines = [line.split("\t") for line in printed.out.splitlines()]
    assert ["server", "not_ready", "no engine is connected"] in lines
    assert ["engine", "no answer", ""] in lines


def test_of_several_engines_each_has_its_role_ranks_and_state(
    ratoon: Ratoon, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replace(asyncio.run(engine.ask(StatsQuery())).stats, tensor_parallel=2)
    joined = joined_stats({"0": one}, 0)

    async def both(_: object) -> StatsReply:
        return StatsReply(query_id="", stats=joined)

    monkeypatch.setattr(engine, "answer", both)
    monkeypatch.setattr(
        engine,
        "replicas",
        {
            "0": ReplicaHealth("ready", "", role="decode"),
            "1": ReplicaHealth("handshake_failed", "another link key than --link-key-file"),
        },
    )
    printed = ratoon("status")
    lines = [line.split("\t") for line in printed.out.splitlines()]
    said = "decode: TP 2 x PP 1 ranks run: 0 running, 0 waiting, up for 1 s"
    assert ["engine 0", "answers", said] in lines
    assert ["engine 1", "handshake_failed", "another link key than --link-key-file"] in lines


def test_a_router_process_is_there_where_there_is_one(
    ratoon: Ratoon, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "router" not in ratoon("status").out
    for answers, said in ((True, ["answers", ""]), (False, ["no answer", "each worker chooses"])):
        monkeypatch.setattr(engine, "router_answers", answers)
        printed = ratoon("status")
        assert printed.status == 0, "requests are served"
        assert "\t".join(["router", *said]) in printed.out
        assert ratoon("status --json").json["cache"]["router_answers"] is answers


def told(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, **changed: SentinelStats | GapStats
) -> None:
    """Let the engine report other counters."""
    stats = replace(asyncio.run(engine.ask(StatsQuery())).stats, **changed)

    async def answer(_: object) -> StatsReply:
        return StatsReply(query_id="", stats=stats)

    monkeypatch.setattr(engine, "answer", answer)


def test_answers_that_differ_without_the_cache_are_told(
    ratoon: Ratoon, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "cache\twrong" not in ratoon("status").out
    told(engine, monkeypatch, sentinel=SentinelStats(checked=7, differed=1))
    assert (
        "cache\twrong\t1 of 7 answers computed again differ, 0 blocks damaged"
        in ratoon("status").out
    )


@pytest.mark.parametrize(("late", "is_told"), [(2, False), (3, True)])
def test_gaps_that_miss_their_targets_are_told(
    ratoon: Ratoon, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, late: int, is_told: bool
) -> None:
    told(engine, monkeypatch, gaps=GapStats(recent_gaps=200, recent_late=late))
    printed = ratoon("status").out
    assert ("gaps\ttoo long\t3 of the last minute's 200 gaps" in printed) is is_told


def test_without_one_whose_key_fits_it_says_so(
    ratoon: Ratoon, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "welcome", None)
    monkeypatch.setattr(engine, "handshake_error", "tcp://e:1: the handshake fails")
    lines = [line.split("\t") for line in ratoon("status").out.splitlines()]
    assert ["server", "not_ready", "tcp://e:1: the handshake fails"] in lines


def test_a_server_that_is_not_there_is_one_line(console: Console) -> None:
    printed = console.type("status", "--url", "http://127.0.0.1:1", "--admin-key", "k" * 16)
    assert printed.status == 1
    assert printed.out == ""
    assert "no answer from http://127.0.0.1:1" in printed.err
