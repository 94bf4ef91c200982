"""One tenant uses as many sampling options as allowed, without an effect on other tenants.

128 choices with 1,024 biases each run beside a plain request, and all get the same answers as
alone. The tenant's client leaves during its answers. The next requests in its batch slots have none
of its biases or counted tokens. `tests/engine/sampling/test_cost.py` tests the cost of many
entries.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gateway.config import Bounds
from tests.seams.support.server import Server

PROMPTS, CHOICES = 8, 16  # their product is the maximum of a request (`max_prompts`)
FORCED = " 7"
TOKENS = 12
QUESTION = "The support code for Oslo is 1417. What is the support code for Oslo?"


def completion(client: httpx.Client, prompt: str | list[str], **options: Any) -> list[str]:
    """Return the texts of all choices."""
    body = {"model": "handbook", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    answer = client.post("/v1/completions", json=body | {"ignore_eos": True} | options)
    answer.raise_for_status()
    return [choice["text"] for choice in answer.json()["choices"]]


def token_ids(client: httpx.Client, text: str) -> list[int]:
    asked = {"prompt": text, "add_special_tokens": False}
    answer = client.post("/tokenize", json=asked)
    answer.raise_for_status()
    ids: list[int] = answer.json()["tokens"]
    return ids


def biases(client: httpx.Client) -> dict[str, float]:
    """Make as many biases as allowed. One of them decides every token."""
    forced = token_ids(client, FORCED)[-1]
    others = [token for token in range(Bounds().max_logit_bias) if token != forced]
    lowered = dict.fromkeys(map(str, others[: Bounds().max_logit_bias - 1]), -100.0)
    return lowered | {str(forced): 100.0}


def greedy_as_it_is(client: httpx.Client) -> list[str]:
    """Return greedy answers, without and with penalties that count tokens."""
    return [
        *completion(client, QUESTION),
        *completion(client, QUESTION, frequency_penalty=1.5, repetition_penalty=1.3),
    ]


def test_a_neighbour_of_128_biased_choices_gets_what_it_gets_alone(server: Server) -> None:
    prompts = [f"{number}: {QUESTION}" for number in range(PROMPTS)]
    with server.client(server.new_tenant()) as hostile, server.client() as neighbour:
        bias = biases(hostile)
        alone = greedy_as_it_is(neighbour)
        with ThreadPoolExecutor() as pool:
            many = pool.submit(completion, hostile, prompts, n=CHOICES, logit_bias=bias)
            beside = [greedy_as_it_is(neighbour) for _ in range(2)]
            texts = many.result()
        unbiased = completion(hostile, prompts[0])
    assert len(texts) == PROMPTS * CHOICES
    assert len(set(texts)) == 1, "every choice is forced, all of its tokens are"
    assert len(set(texts[0].split())) == 1
    assert unbiased[0] != texts[0], "without biases it says something else"
    assert beside == [alone] * 2
    assert alone[0] != alone[1], "penalties change the text"


def test_seats_that_were_left_in_mid_answer_keep_nothing_of_who_left(server: Server) -> None:
    with server.client(server.new_tenant()) as hostile, server.client() as neighbour:
        alone = greedy_as_it_is(neighbour)
        body = {
            "model": "handbook",
            "prompt": [f"{number} {QUESTION}" for number in range(PROMPTS)],
            "n": CHOICES,
            "max_tokens": 600,
            "ignore_eos": True,
            "stream": True,
            "logit_bias": biases(hostile),
            "presence_penalty": 2.0,
            "frequency_penalty": -2.0,
            "min_tokens": 600,
        }
        for _ in range(2):
            with hostile.stream("POST", "/v1/completions", json=body) as answer:
                assert answer.status_code == 200
                assert next(answer.iter_lines()).startswith("data:")
            assert greedy_as_it_is(neighbour) == alone


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"logit_bias": {str(i): 1 for i in range(Bounds().max_logit_bias + 1)}}, "logit_bias"),
        ({"logit_bias": {"100000000000": 1}}, "logit_bias"),
        ({"n": Bounds().max_choices + 1}, "n"),
        ({"n": CHOICES, "prompt": ["a"] * (PROMPTS + 1)}, "n"),
        ({"stop_token_ids": list(range(Bounds().max_stops + 1))}, "stop_token_ids"),
        ({"logprobs": Bounds().max_logprobs + 1}, "logprobs"),
    ],
)
def test_one_more_than_is_allowed_is_refused(
    server: Server, options: dict[str, Any], param: str
) -> None:
    body = {"model": "handbook", "prompt": "a", "max_tokens": 1}
    with server.client() as client:
        answer = client.post("/v1/completions", json=body | options)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert client.post("/v1/completions", json=body).status_code == 200
