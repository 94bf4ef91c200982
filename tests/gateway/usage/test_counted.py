"""A request's counts in `/metrics`: every counter and label, however the request ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from engine.errors import NumericFailure, QueueFull
from tests.doubles.engine.fake_engine import FakeEngine, failing_at, hanging_at
from tests.doubles.gateway.served import MODEL, Served

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
Counts = dict[str, float]
ANSWERED = ("time_to_first_token_seconds_count", "queue_seconds_count")
OWN = tuple(
    f"ratoon_{name}"
    for name in ("request", "prompt_", "cached_", "generated_", "queue_", "time_", "inter_")
)


def counts(served: Served) -> Counts:
    """Return the gateway's own counters, and the number of observations of each histogram."""
    headers = {"authorization": f"Bearer {served.admin_key}"}
    text = httpx.get(f"{served.url}/metrics", headers=headers, timeout=60).text
    samples = [
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    ]
    return {
        " ".join([sample.name.removeprefix("ratoon_"), *labels(sample)]): sample.value
        for sample in samples
        if sample.name.startswith(OWN) and not sample.name.endswith(("_bucket", "_created", "_sum"))
    }


def labels(sample: Sample) -> list[str]:
    """Return the label values of a sample, in the order of the label names."""
    return [sample.labels[name] for name in sorted(sample.labels)]


def post(served: Served, path: str = COMPLETIONS, **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {served.key}"}
    asked = {"model": MODEL, **body}
    return httpx.post(f"{served.url}{path}", json=asked, headers=headers, timeout=60)


def added(served: Served, ask: Callable[[], object]) -> Counts:
    """Return what `ask` adds to the counters."""
    before = counts(served)
    ask()
    assert served.wait_idle()
    after = counts(served)
    return {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer(served: Served, engine: FakeEngine, stream: bool) -> None:
    def ask() -> httpx.Response:
        return post(served, prompt=list(range(50)), max_tokens=5, stream=stream)

    told = {
        f"requests_total length {COMPLETIONS}": 1,
        f"request_seconds_count {COMPLETIONS}": 1,
        "prompt_tokens_total": 50,
        "generated_tokens_total": 5,
        "inter_token_latency_seconds_count": 4,
        **dict.fromkeys(ANSWERED, 1),
    }
    assert added(served, ask) == told
    assert added(served, ask) == {**told, "cached_tokens_total": 48}


def test_a_prompt_that_is_computed_alone(served: Served, engine: FakeEngine) -> None:
    assert added(served, lambda: post(served, prompt=[3] * 50, max_tokens=0)) == {
        f"requests_total length {COMPLETIONS}": 1,
        f"request_seconds_count {COMPLETIONS}": 1,
        "prompt_tokens_total": 50,
    }


def test_an_answer_of_several_choices_to_several_prompts(
    served: Served, engine: FakeEngine
) -> None:
    prompts = [[1, 2, 3], [4, 5, 6, 7]]
    assert added(served, lambda: post(served, prompt=prompts, n=2, max_tokens=2)) == {
        f"requests_total length {COMPLETIONS}": 1,
        f"request_seconds_count {COMPLETIONS}": 1,
        "prompt_tokens_total": 7,
        "generated_tokens_total": 8,
        "inter_token_latency_seconds_count": 4,
        "time_to_first_token_seconds_count": 1,
        "queue_seconds_count": 4,
    }


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"prompt": [1], "n": 0}, "invalid_value"),
        ({"prompt": [1] * 5000}, "context_length_exceeded"),
        ({"prompt": [1], "suffix": "x"}, "unsupported_parameter"),
        ({"prompt": [1], "model": "other"}, "model_not_found"),
        ({}, "missing_required_parameter"),
        ({"prompt": [1] * 2, "stop": ["a"] * 160_000}, "invalid_json"),
        # 64 choices may run at once
        ({"prompt": [[1]] * 65, "max_tokens": 1}, "rate_limit_exceeded"),
    ],
)
def test_a_refusal_is_one_of_its_code_and_nothing_else(
    served: Served, engine: FakeEngine, body: dict[str, Any], code: str
) -> None:
    expected = {f"requests_refused_total {code} {COMPLETIONS}": 1}
    assert added(served, lambda: post(served, **body)) == expected
    assert engine.requests == []


def test_a_refusal_without_a_key_names_its_route(served: Served, engine: FakeEngine) -> None:
    def ask() -> None:
        assert httpx.post(f"{served.url}{CHAT}", json={}, timeout=60).status_code == 401

    assert added(served, ask) == {f"requests_refused_total invalid_api_key {CHAT}": 1}


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_the_engine_counts_what_came_before_it(
    served: Served, engine: FakeEngine, stream: bool
) -> None:
    engine.pace = failing_at(3, NumericFailure("nan"))
    assert added(served, lambda: post(served, prompt=[9] * 20, max_tokens=9, stream=stream)) == {
        f"requests_total numeric_failure {COMPLETIONS}": 1,
        f"request_seconds_count {COMPLETIONS}": 1,
        "prompt_tokens_total": 20,
        "generated_tokens_total": 3,
        "inter_token_latency_seconds_count": 2,
        **dict.fromkeys(ANSWERED, 1),
    }


def test_an_engine_that_takes_nothing(served: Served, engine: FakeEngine) -> None:
    engine.pace = failing_at(0, QueueFull("full"))
    assert added(served, lambda: post(served, prompt=[8] * 20, max_tokens=9)) == {
        f"requests_total queue_full {COMPLETIONS}": 1,
        f"request_seconds_count {COMPLETIONS}": 1,
        "prompt_tokens_total": 20,
    }


def test_a_client_that_leaves(served: Served, engine: FakeEngine) -> None:
    engine.pace = hanging_at(2)

    def leave() -> None:
        headers = {"authorization": f"Bearer {served.key}"}
        body = {"model": MODEL, "prompt": [7] * 20, "stream": True}
        url = f"{served.url}{COMPLETIONS}"
        with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
            lines = (line for line in answer.iter_lines() if line)
            assert [next(lines)[:5] for _ in range(2)] == ["data:"] * 2

    assert added(served, leave) == {
        f"requests_total cancelled {COMPLETIONS}": 1,
        f"request_seconds_count {COMPLETIONS}": 1,
        "prompt_tokens_total": 20,
        "generated_tokens_total": 2,
        "inter_token_latency_seconds_count": 1,
        **dict.fromkeys(ANSWERED, 1),
    }
