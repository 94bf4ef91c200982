import json

import pytest

from tests.cli.console import Console
from tests.cli.http_double import served
from tests.cli.openai_double import OpenAIDouble, Script
from tests.doubles.gateway.served import Served


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_workload_is_reported_phase_by_phase(
    console: Console, gateway: Served, processes: str
) -> None:
    words = ["bench", "--url", gateway.url, "--key", gateway.key, "--small", "--json"]
    printed = console.type(*words, "--workload", "ttft-hot", "--processes", processes)
    phases = [json.loads(line) for line in printed.out.splitlines()]
    assert [told["phase"] for told in phases] == [
        "ttft-cold-64",
        "ttft-hot-64",
        "ttft-cold-128",
        "ttft-hot-128",
    ]
    for told in phases:
        assert told["workload"] == "ttft-hot"
        assert told["report"]["errors"] == {}
        assert told["report"]["succeeded"] == told["report"]["requests"] == 2
        assert told["report"]["wall_s"] > 0
    assert [told["report"]["hit_rate"] > 0 for told in phases] == [False, True] * 2


def test_a_workload_that_the_model_has_no_room_for_is_not_begun(
    console: Console, gateway: Served
) -> None:
    words = ["bench", "--url", gateway.url, "--key", gateway.key, "--workload", "ttft-hot"]
    printed = console.type(*words)
    assert printed.status == 2
    assert printed.out == ""
    assert "--workload: ttft-hot has requests of " in printed.err
    assert "tiny takes 4096: --small" in printed.err


def test_a_chain_ends_where_a_turn_fails(console: Console) -> None:
    with served(OpenAIDouble([Script(), Script(status=503)]).app) as url:
        words = ["bench", "--url", url, "--key", "secret", "--small", "--json", "--processes", "1"]
        report = console.type(*words, "--workload", "multiturn").json["report"]
    assert report["requests"] == 3, "two chains: one breaks at its first turn, one at its second"
    assert report["succeeded"] == 1


def test_several_processes_divide_a_workload(console: Console, gateway: Served) -> None:
    words = ["bench", "--url", gateway.url, "--key", gateway.key, "--small", "--json"]
    report = console.type(*words, "--workload", "mixed", "--processes", "3").json["report"]
    assert (report["requests"], report["succeeded"], report["errors"]) == (6, 6, {})
