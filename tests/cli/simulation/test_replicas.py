"""Replays over several replicas give the results of small traces by hand. Routers that know caches
find more than others.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest

from cli.load.requests.trace import faster, read_trace, session_blocks
from cli.plan.machine import MachineModel, ModelShape
from cli.simulation.replay import Replay, TierSizes, admit
from cli.simulation.replicas import Costs, ReplicaSet, SimulatedReplica
from cli.simulation.steps import VirtualClock, gap_at
from engine.link.messages import Role
from gateway.routing.router import Router
from gateway.routing.routers.by_name import ROUTERS, RouterName, router_by_name
from gateway.routing.routers.first_token import FirstTokenRouter
from gateway.routing.routers.least_outstanding import LeastOutstandingRouter
from tests.cli.console import Console
from tests.cli.simulation.traces import row, write

COSTS = Costs(ModelShape(), MachineModel(), 10)


def replayed(
    path: Path,
    router: Router,
    clock: VirtualClock,
    count: int = 2,
    *,
    size: int = 400,
    costs: Costs = COSTS,
    prefill: int = 0,
) -> ReplicaSet:
    roles: list[Role] = ["prefill" if prefill else "both"] * (prefill or count)
    roles += ["decode"] * (count - len(roles))
    members = [
        SimulatedReplica(f"r{n}", Replay(10, TierSizes(size), "lru"), costs, clock, role)
        for n, role in enumerate(roles)
    ]
    replicas = ReplicaSet(router, clock, members, costs)
    replicas.run(admit(read_trace(path, 10)), lambda _: None)
    for one in members:
        one.replay.check()
    return replicas


def by_router(path: Path, name: RouterName, count: int = 2) -> ReplicaSet:
    clock = VirtualClock()
    return replayed(path, router_by_name(name, clock, session_blocks=2), clock, count)


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """Write interleaved conversations that grow, and that all begin with one block."""
    random, rows = Random(3), []
    turns = dict.fromkeys(range(24), 0)
    for at in range(240):
        session = random.choice([s for s in turns if turns[s] < 12] or [0])
        turns[session] += 1
        ids = [0, *(100 * (session + 1) + n for n in range(2 * turns[session]))]
        rows.append(row(1000.0 * at, ids, tenant="a"))
    return write(tmp_path / "sessions.jsonl", rows)


def test_each_replica_has_a_cache_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path / "t", [row(1000 * at, [1, 2, 3]) for at in range(4)])
    replicas = replayed(path, LeastOutstandingRouter(), VirtualClock())
    assert [one.cached for one in replicas.served] == [0, 0, 20, 20]
    assert [len(one.served) for one in replicas.replayed()] == [2, 2]


def test_a_prompt_waits_for_those_before_it_at_its_replica_alone(tmp_path: Path) -> None:
    rows = [row(0, [1000 * n + at for at in range(819)]) for n in range(3)]
    path = write(tmp_path / "t", rows)
    replicas = replayed(path, LeastOutstandingRouter(), VirtualClock(), size=20_000)
    first, second, third = replicas.ttft_s
    assert first == pytest.approx(second, rel=0.01)
    assert third == pytest.approx(2 * first, rel=0.05)


def test_a_busy_replica_s_prefix_is_fetched_by_an_idle_one(tmp_path: Path) -> None:
    begin = list(range(2000))
    rows = [
        row(0, begin),
        row(9000, [*begin, *range(5000, 8000)]),  # routed to the replica with its prefix
        row(9000, [*begin, 1]),
        row(9001, [*begin, 2]),
    ]
    path, clock = write(tmp_path / "t", rows), VirtualClock()
    fast = replace(COSTS, fetch_gb_s=50.0)
    fetching = replayed(path, FirstTokenRouter(clock), clock, size=90_000, costs=fast)
    clock = VirtualClock()
    alone = replayed(path, FirstTokenRouter(clock), clock, size=90_000)
    assert [one.fetched for one in alone.served] == [0, 0, 0, 0]
    assert sum(one.fetched for one in fetching.served) == 20_000
    assert sorted(fetching.ttft_s)[1] < 0.2 < min(alone.ttft_s)
    assert sum(one.computed for one in fetching.served) <= sum(one.computed for one in alone.served)


def test_prompts_are_computed_apart_and_count_once(tmp_path: Path) -> None:
    rows = [row(20 * n, [1000 * n + at for at in range(900)], output=300) for n in range(12)]
    path, fast = write(tmp_path / "t", rows), replace(COSTS, fetch_gb_s=50.0)
    clock = VirtualClock()
    apart = replayed(path, FirstTokenRouter(clock), clock, 3, size=200_000, costs=fast, prefill=1)
    clock = VirtualClock()
    together = replayed(path, FirstTokenRouter(clock), clock, 3, size=200_000, costs=fast)
    assert apart.remote_prefills > 6
    assert together.remote_prefills == 0
    assert sum(one.computed for one in apart.served) == 12 * 9000, "what was fetched was computed"
    assert gap_at(apart.gaps, 99) < 0.5 * gap_at(together.gaps, 99)
    assert len(apart.ttft_s) == len(together.ttft_s) == 12
    tokens = [sum(one.tokens for one in run.gaps) for run in (apart, together)]
    assert tokens == [12 * 299, 12 * 299]


def test_what_happens_later_happens_in_order() -> None:
    clock, seen = VirtualClock(), list[tuple[float, str]]()
    for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (5.0, "d")):
        clock.at(when, lambda name=name: seen.append((clock.now, name)))  # type: ignore[misc]
    clock.advance(2.0)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    assert clock() == 2.0


def test_a_router_that_knows_caches_finds_what_the_others_miss(sessions: Path) -> None:
    rates = {
        name: sum(one.cached for one in by_router(sessions, name, 4).served) for name in ROUTERS
    }
    assert rates["first-token"] > 1.5 * rates["least-outstanding"]
    assert rates["session"] > 1.5 * rates["least-outstanding"]


def test_the_common_block_does_not_draw_all_sessions_to_one_replica(sessions: Path) -> None:
    def most(name: RouterName) -> int:
        runs = by_router(sessions, name, 4).replayed()
        computed = [sum(one.input_tokens - one.cached for one in run.served) for run in runs]
        return 4 * max(computed) // sum(computed)

    assert most("first-token") == 1
    # positive control: this router sends several requests to one replica
    assert most("cached-share") >= 2


def test_the_command_prints_all_routers_and_one_cache(console: Console, sessions: Path) -> None:
    words = ("simulate", str(sessions), "--block-size", "10", "--device-tokens", "400")
    report = console.type(*words, "--replicas", "4", "--json").json
    assert (report["replicas"], report["router"]) == (4, "first-token")
    routers = {one["router"]: one for one in report["by_router"]}
    assert list(routers) == ["one cache", *ROUTERS]
    assert routers["one cache"]["of_one_cache"] == 1.0
    chosen = routers["first-token"]
    assert chosen["token_hit_rate"] == pytest.approx(report["together"]["token_hit_rate"])
    assert chosen["of_one_cache"] > routers["least-outstanding"]["of_one_cache"]
    assert report["together"]["requests"] == 240
    roles = ("--fetch-gb-s", "20", "--prefill-replicas", "1")
    more = console.type(*words, "--replicas", "4", *roles, "--json").json
    labels = ["first-token, fetching", "first-token, 1 for prompts"]
    assert [one["router"] for one in more["by_router"]] == ["one cache", *ROUTERS, *labels]
    assert more["router"] == labels[-1]
    for refused in (roles[2:], ("--fetch-gb-s", "20", "--prefill-replicas", "4")):
        wrong = console.type(*words, "--replicas", "4", *refused)
        assert (wrong.status, "--prefill-replicas" in wrong.err) == (2, True)
    one = console.type(*words, "--json").json
    # each replica has a quarter of the room
    assert one["token_hit_rate"] < routers["one cache"]["token_hit_rate"]
    printed = console.type(*words, "--replicas", "4", "--router", "session", "--sizes", "200").out
    for word in ("4 replicas by router; above: session", "one cache", "busiest / mean", "200"):
        assert word in printed


def test_a_plot_has_a_curve_for_each_router(
    console: Console, sessions: Path, tmp_path: Path
) -> None:
    plot = tmp_path / "hits.svg"
    sizes = ("--block-size", "10", "--device-tokens", "400", "--sizes", "200,400")
    words = (*sizes, "--replicas", "2", "--plot", str(plot))
    assert console.type("simulate", str(sessions), *words).status == 0
    assert ElementTree.fromstring(plot.read_bytes()).tag == "{http://www.w3.org/2000/svg}svg"
    assert all(name in plot.read_text() for name in (*ROUTERS, "one cache"))


@pytest.mark.parametrize("flag", ["--fetch-gb-s", "--prefill-replicas", "--gateways"])
def test_what_says_nothing_of_one_replica_is_refused(
    console: Console, sessions: Path, flag: str
) -> None:
    printed = console.type("simulate", str(sessions), "--block-size", "10", flag, "2")
    assert printed.status == 2
    assert printed.err.startswith(f"ratoon: {flag}: ")


def test_faster_is_closer_together_and_nothing_else(sessions: Path) -> None:
    trace: Any = read_trace(sessions, 10)
    twice = faster(trace, 2.0)
    assert [one.at for one in twice.requests] == [one.at / 2 for one in trace.requests]
    assert (twice.num_blocks, session_blocks(twice)) == (trace.num_blocks, 2)
