import json
from pathlib import Path

import httpx
import pytest

from cli.load.runs import Counted
from cli.load.sender import RequestOutcome
from tests.cli.console import Console
from tests.cli.http_double import served
from tests.cli.openai_double import OpenAIDouble, Script, usage
from tests.doubles.engine.tiny_model import write_tiny_model
from tests.doubles.gateway.served import Served


def small(url: str, *more: str) -> list[str]:
    """Return the arguments of a small benchmark against `url`."""
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


def test_no_more_are_in_flight_than_were_asked_for(console: Console) -> None:
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
def test_arrivals_are_sent_and_timed_from_when_they_came(
    console: Console, gateway: Served, processes: str
) -> None:
    words = small(gateway.url, "--key", gateway.key, "--rate", "200", "--json")
    words += ["--processes", processes, "--slo", "ttft=60s,tpot=60s"]
    report = console.type(*words).json
    assert (report["succeeded"], report["errors"]) == (6, {})
    assert report["arrivals_per_s"] > 0
    assert report["waited_s"]["count"] == 6
    assert report["tpot_s"]["count"] == 6
    assert report["goodput"]["slo"] == {"ttft": 60.0, "tpot": 60.0, "e2e": None}
    assert (report["goodput"]["met"], report["goodput"]["share"]) == (6, 1.0)
    assert report["output_characters"] > 0


def test_a_closed_loop_has_no_arrivals(console: Console) -> None:
    with served(OpenAIDouble([Script(usage=usage(32, 3))]).app) as url:
        report = console.type(*small(url, "--json")).json
    assert (report["arrivals_per_s"], report["waited_s"], report["goodput"]) == (None,) * 3
    assert (report["output_characters"], report["tpot_s"]["count"]) == (18, 6)


def test_all_arrive_at_once_however_few_callers_a_closed_loop_has(console: Console) -> None:
    double = OpenAIDouble([Script((0.3, "a"))])
    with served(double.app) as url:
        console.type(*small(url, "--rate", "inf", "--processes", "1"))
    assert double.most_running == 6


def test_ways_of_batching_stand_side_by_side_with_prompts_of_their_own(
    console: Console, tmp_path: Path
) -> None:
    double = OpenAIDouble([Script((0.01, "a", "b"), usage=usage(32, 2))])
    with served(double.app) as url:
        words = [*small(url, "--batching", "static:2,dynamic:4:10ms,continuous")]
        printed = console.type(*words, "--processes", "1", "--plot", str(tmp_path))
    assert printed.status == 0
    assert printed.out.splitlines()[1].split("\t") == [
        "", "static:2", "dynamic:4:10ms", "continuous",
    ]  # fmt: skip
    assert printed.out.count("6 of 6") == 3
    prompts = [tuple(body["prompt"]) for body in double.bodies]
    assert len(set(prompts)) == 18
    svg = (tmp_path / "over-time.svg").read_text()
    assert "static:2 TTFT" in svg
    assert "continuous TPOT" in svg


def test_a_static_batch_is_all_that_runs(console: Console) -> None:
    double = OpenAIDouble([Script((0.05, "a"))])
    with served(double.app) as url:
        report = console.type(*small(url, "--batching", "static:2", "--json")).json
    assert double.most_running == 2
    assert report["waited_s"]["max"] >= 0.1, "the third batch waits for two"


def test_the_highest_rate_is_searched_and_drawn(console: Console, tmp_path: Path) -> None:
    with served(OpenAIDouble([Script(usage=usage(32, 3))]).app) as url:
        words = small(url, "--find-rate", "--slo", "ttft=60s", "--find-seconds", "1")
        words += ["--rate", "1000", "--processes", "1", "--plot", str(tmp_path)]
        found = console.type(*words, "--json").json
        printed = console.type(*words)
    assert found["share"] == 0.9
    assert found["probes"][0]["rate"] == 1000.0
    assert found["probes"][0]["requests"] == 100
    assert "Rates at which 90.0% have to meet the SLO" in printed.out
    assert "Goodput" in (tmp_path / "goodput.svg").read_text()


def test_no_rate_meets_what_cannot_be_met(console: Console) -> None:
    with served(OpenAIDouble([Script((0.02, "a"))]).app) as url:
        words = small(url, "--find-rate", "--slo", "ttft=1ms", "--find-seconds", "1")
        printed = console.type(*words, "--rate", "1000", "--processes", "1")
    assert "No rate that was tried meets it" in printed.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--find-rate"], "--find-rate: needs --slo"),
        (["--slo", "ttft=2"], "--slo: '2' is not a time"),
        (["--find-rate", "--slo", "ttft=1s", "--batching", "all"], "--find-rate: "),
        (["--find-rate", "--slo", "ttft=1s", "--rate", "inf"], "--rate: "),
        (["--workload", "mixed", "--small", "--rate", "1"], "--workload: "),
        (["--arrivals", "no-such-file"], "--arrivals: no-such-file: No such file"),
        (["--dataset", "no-such-file"], "--dataset: no-such-file: No such file"),
        (["--batching", "some"], "--batching: 'some' is none of"),
    ],
)
def test_flags_that_cannot_work_are_named(console: Console, words: list[str], message: str) -> None:
    double = OpenAIDouble()
    with served(double.app) as url:
        printed = console.type(*small(url, *words))
    assert printed.status == 2
    assert message in printed.err
    assert double.bodies == []


def test_lengths_come_from_a_data_set_whose_tokens_the_server_counts(
    console: Console, gateway: Served, tmp_path: Path
) -> None:
    said = [{"from": "human", "value": "b a b c " * 4}, {"from": "gpt", "value": "a b"}]
    (tmp_path / "sharegpt.json").write_text(json.dumps([{"id": "1", "conversations": said}]))
    words = small(gateway.url, "--key", gateway.key, "--json")
    report = console.type(*words, "--dataset", str(tmp_path / "sharegpt.json")).json
    asked = httpx.post(
        f"{gateway.url}/tokenize",
        headers={"Authorization": f"Bearer {gateway.key}"},
        json={"prompt": said[0]["value"], "add_special_tokens": False},
    ).json()
    assert report["errors"] == {}
    assert report["prompt_tokens"] == 6 * asked["count"]
    model_dir = str(write_tiny_model(tmp_path / "tiny"))  # the gateway's own tokenizer
    words += ["--dataset", str(tmp_path / "sharegpt.json"), "--tokenizer", model_dir]
    assert console.type(*words).json["prompt_tokens"] == report["prompt_tokens"]


def test_a_tokenizer_that_is_not_there_is_named(
    console: Console, gateway: Served, tmp_path: Path
) -> None:
    (tmp_path / "q.jsonl").write_text('{"turns": ["a"]}\n')
    words = small(gateway.url, "--key", gateway.key, "--dataset", str(tmp_path / "q.jsonl"))
    printed = console.type(*words, "--tokenizer", str(tmp_path))
    assert printed.status == 2
    assert "--tokenizer: " in printed.err


def test_what_the_model_has_no_room_for_is_left_out_and_said(
    console: Console, gateway: Served, tmp_path: Path
) -> None:
    rows = [
        {"timestamp": ms, "input_length": length, "output_length": 2, "hash_ids": [0] * blocks}
        for ms, length, blocks in ((0, 40, 1), (1, 5000, 10), (2, 44, 1))
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["bench", "--url", gateway.url, "--key", gateway.key, "--json", "--requests", "3"]
    printed = console.type(*words, "--dataset", str(trace), "--arrivals", str(trace))
    assert (printed.json["requests"], printed.json["prompt_tokens"]) == (2, 84)
    assert printed.json["hit_rate"] > 0, "the two begin alike"
    assert "1 of 3 requests are left out" in printed.err
