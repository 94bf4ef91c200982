"""Gateways that route separately share the state of caches, but lose hits on concurrent prompts."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from cli.simulation.gateways import GatewaysRouter
from cli.simulation.steps import VirtualClock
from gateway.routing.routers.first_token import FirstTokenRouter
from tests.cli.console import Console
from tests.cli.simulation.test_replicas import replayed
from tests.cli.simulation.traces import row, write
from tests.gateway.routing.requests import cached, request

READY = ("a", "b")


def gateways(count: int, clock: VirtualClock) -> GatewaysRouter:
    return GatewaysRouter([FirstTokenRouter(clock) for _ in range(count)])


def test_all_hear_of_caches_and_forget_a_replica_that_is_gone() -> None:
    one = gateways(8, VirtualClock())
    one.heard("b", cached(*range(50)))
    asked = [request(f"r{number}", *range(60)) for number in range(32)]
    assert {one.choose(each, READY).replica for each in asked} == {"b"}
    assert one.known_blocks("b") == 50
    one.gone("b")
    assert {one.choose(each, READY).replica for each in asked} == {"a"}
    assert one.known_blocks("b") == 0


def test_a_request_has_one_gateway_and_so_has_its_prompt() -> None:
    one = gateways(8, VirtualClock())
    asked = request("r", *range(60))
    before = one.choose(replace(asked, request_id="r~p"), READY).first_token_s
    one.sent("a", asked)
    queued = one.choose(replace(asked, request_id="r~p"), ("a",)).first_token_s
    assert before is not None
    assert queued is not None
    assert queued != before, "it knows of the request"
    one.began("a", "r", None, None)
    one.ended("a", "r")
    assert one.choose(replace(asked, request_id="r~p"), READY).first_token_s == before


def test_the_command_has_gateways(console: Console, tmp_path: Path) -> None:
    rows = [row(0.0, [1000 * (n % 5) + at for at in range(40)]) for n in range(20)]
    words = ("--block-size", "10", "--device-tokens", "9000", "--replicas", "2", "--json")
    path = str(write(tmp_path / "t", rows))

    def routed(gateways: str) -> object:
        printed = console.type("simulate", path, *words, "--gateways", gateways)
        return msgspec.json.decode(printed.out)["by_router"]

    assert routed("1") != routed("8")
    assert routed("1") == routed("1"), "the control"


def test_what_comes_at_once_is_computed_on_more_replicas_where_gateways_route_alone(
    tmp_path: Path,
) -> None:
    begins = [[1000 * tenant + at for at in range(100)] for tenant in range(12)]
    rows = [
        row(float(turn), [*begins[tenant], 100_000 + 100 * turn + tenant])
        for turn in range(8)
        for tenant in range(12)
    ]
    path = write(tmp_path / "t", rows)

    def computed(count: int) -> int:
        clock = VirtualClock()
        run = replayed(path, gateways(count, clock), clock, size=100_000)
        return sum(one.computed for one in run.served)

    once = 12 * 1000
    assert computed(1) < 1.3 * once
    assert computed(8) > 1.7 * once
