import json

import pytest

from cli.errors import BadSetting
from cli.load.options import LoadFlags
from cli.load.requests.phases import SPECIAL_IDS
from cli.load.requests.prompts import WORDS, draw_bodies
from cli.load.runs import Counted
from cli.load.sending.sender import RequestOutcome
from tests.cli.console import Console
from tests.cli.http_double import served
from tests.cli.openai_double import OpenAIDouble, Script, usage
from tests.doubles.gateway.served import Served

LOAD = LoadFlags(requests=6, prompt_tokens=40, shared_tokens=24, output_tokens=7, vocab=300)


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
        counted(RequestOutcome(e2e_s=1.0, error=error))
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


def test_prompts_share_a_beginning_and_nothing_else() -> None:
    prompts = [body["prompt"] for body in draw_bodies(LOAD, "tiny", seed=1)]
    assert len(prompts) == 6
    assert {len(prompt) for prompt in prompts} == {40}
    assert len({tuple(prompt[:24]) for prompt in prompts}) == 1
    assert len({tuple(prompt[24:]) for prompt in prompts}) == 6


def test_ids_stay_within_the_vocabulary() -> None:
    load = LoadFlags(requests=50, vocab=16)
    drawn = {token for body in draw_bodies(load, "tiny", seed=1) for token in body["prompt"]}
    assert drawn == set(range(SPECIAL_IDS, 16))


def test_a_seed_decides_the_prompts() -> None:
    one = draw_bodies(LOAD, "tiny", seed=1)
    assert one == draw_bodies(LOAD, "tiny", seed=1)
    assert one != draw_bodies(LOAD, "tiny", seed=2)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_every_body_asks_for_a_counted_stream_of_a_set_length(endpoint: str) -> None:
    load = LoadFlags(endpoint="chat" if endpoint == "chat" else "completions", output_tokens=7)
    for body in draw_bodies(load, "tiny", seed=1):
        assert body["model"] == "tiny"
        assert body["max_tokens"] == 7
        assert body["ignore_eos"] is True
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        json.dumps(body)


def test_a_chat_shares_its_system_prompt() -> None:
    load = LoadFlags(endpoint="chat", requests=4, prompt_tokens=40, shared_tokens=24)
    chats = [body["messages"] for body in draw_bodies(load, "tiny", seed=1)]
    assert {chat[0]["role"] for chat in chats} == {"system"}
    assert len({chat[0]["content"] for chat in chats}) == 1
    assert len({chat[1]["content"] for chat in chats}) == 4
    words = chats[0][0]["content"].split() + chats[0][1]["content"].split()
    assert len(words) == 40
    assert set(words) <= set(WORDS)


def test_a_chat_without_shared_words_has_no_system_prompt() -> None:
    load = LoadFlags(endpoint="chat", shared_tokens=0)
    assert [m["role"] for m in draw_bodies(load, "tiny", seed=1)[0]["messages"]] == ["user"]


@pytest.mark.parametrize(("shared", "fine"), [(40, True), (41, False)])
def test_no_more_is_shared_than_there_is(shared: int, fine: bool) -> None:
    load = LoadFlags(requests=2, prompt_tokens=40, shared_tokens=shared)
    if fine:
        first, second = draw_bodies(load, "tiny", seed=1)
        assert first == second
    else:
        with pytest.raises(BadSetting, match="--shared-tokens: 41 is more than"):
            draw_bodies(load, "tiny", seed=1)
