import json

import pytest

from cli.bench import Counted
from cli.load import Outcome
from tests.cli.console import Console
from tests.cli.http_double import served
from tests.cli.openai_double import OpenAIDouble, Script, usage
from tests.doubles.served import Served


def small(url: str, *more: str) -> list[str]:
    """A small run against `url`."""
    words = ["bench", "--url", url, "--key", "secret", "--requests", "6", "--concurrency", "3"]
    return [*words, "--prompt-tokens", "32", "--shared-tokens", "16", *more]


def test_counts_come_from_the_servers_usage(console: Console) -> None:
    double = OpenAIDouble(
        [
            Script(usage=usage(32, 3, cached=0)),
            Script(status=429),
            Script(usage=usage(32, 3, cached=16)),
        ]
    )
    with served(double.app) as url:
        report = console.type(*small(url, "--json", "--seed", "7")).json
    assert report["requests"] == 6
    assert report["succeeded"] == 5
    assert report["errors"] == {"429 rate_limit_exceeded": 1}
    assert report["prompt_tokens"] == 160
    assert report["cached_tokens"] == 64
    assert report["hit_rate"] == pytest.approx(0.4)
    assert report["output_tokens"] == 15
    assert report["seed"] == 7
    assert report["ttft_s"]["count"] == 5
    assert report["itl_s"]["count"] == 10
    assert report["e2e_s"]["count"] == 5


def test_the_first_model_served_is_asked_and_a_named_one_instead(console: Console) -> None:
    double = OpenAIDouble()
    with served(double.app) as url:
        console.type(*small(url))
        console.type(*small(url, "--served-model", "other"))
    assert [body["model"] for body in double.bodies] == ["tiny"] * 6 + ["other"] * 6
    assert double.keys == {"Bearer secret"}


def test_so_many_are_in_flight_and_no_more(console: Console) -> None:
    double = OpenAIDouble([Script((0.05, "a"))])
    with served(double.app) as url:
        console.type(*small(url))
    assert double.most_running == 3


def test_runs_differ_unless_they_share_a_seed(console: Console) -> None:
    double = OpenAIDouble()
    with served(double.app) as url:
        for more in ([], [], ["--seed", "1"], ["--seed", "1"]):
            console.type(*small(url, *more))
    heads = [tuple(body["prompt"][:16]) for body in double.bodies[::6]]
    assert len(set(heads)) == 3
    assert heads[2] == heads[3]


def test_a_chat_run_uses_chat_completions(console: Console) -> None:
    double = OpenAIDouble([Script(usage=usage(5, 3))])
    with served(double.app) as url:
        report = console.type(*small(url, "--endpoint", "chat", "--json")).json
    assert report["succeeded"] == 6
    assert report["itl_s"]["count"] == 12
    assert all("messages" in body for body in double.bodies)


def test_tables_for_people(console: Console) -> None:
    with served(OpenAIDouble([Script(usage=usage(32, 3, cached=8))]).app) as url:
        printed = console.type(*small(url))
    assert printed.status == 0
    assert "TTFT" in printed.out
    assert "25.0%" in printed.out
    assert "6 of 6" in printed.out


def test_no_success_is_status_1(console: Console) -> None:
    with served(OpenAIDouble([Script(status=503)]).app) as url:
        printed = console.type(*small(url))
    assert printed.status == 1
    assert "6 failed: 503" in printed.err
    assert "no request succeeded" in printed.err


def test_a_wrong_key_is_the_servers_message(console: Console) -> None:
    with served(OpenAIDouble().app) as url:
        printed = console.type("bench", "--url", url, "--key", "wrong")
    assert (printed.status, printed.err) == (1, "ratoon: The key is not valid. (401)\n")


def test_an_unreachable_server_is_reported(console: Console) -> None:
    printed = console.type(*small("http://127.0.0.1:9"))
    assert printed.status == 1
    assert "is 'ratoon serve' running there?" in printed.err


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_the_real_gateway_takes_what_is_sent(
    console: Console, gateway: Served, endpoint: str
) -> None:
    words = small(gateway.url, "--key", gateway.key, "--endpoint", endpoint, "--json")
    report = console.type(*words, "--output-tokens", "5").json
    assert report["errors"] == {}
    assert report["succeeded"] == 6
    assert report["output_tokens"] == 30
    assert report["ttft_s"]["count"] == 6
    assert report["hit_rate"] > 0, "the fake engine's cache knows the shared block"


def test_the_bar_says_how_many_failed() -> None:
    told: list[tuple[int, str | None]] = []

    class Bar:
        def __call__(self, count: int, *, name: str | None = None) -> None:
            told.append((count, name))

    counted = Counted(Bar())
    for error in (None, "timeout", None):
        counted(Outcome(e2e_s=1.0, error=error))
    assert told == [(1, None), (1, "requests (1 failed)"), (1, "requests (1 failed)")]


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
