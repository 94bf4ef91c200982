"""Log-probabilities, unstreamed and streamed, are given only if asked for, up to a limit.

The official client sends the requests.
"""

from __future__ import annotations

import httpx
import pytest
from google import genai
from google.genai import types

from tests.doubles.engine.fake_engine import FakeEngine, saying
from tests.doubles.gateway.served import Served
from tests.gateway.dialects.gemini.asking import ask, error_of, post, streamed


def results_of(answer: types.GenerateContentResponse) -> list[types.LogprobsResult]:
    """Return the log-probabilities of an answer's candidates."""
    found = [candidate.logprobs_result for candidate in answer.candidates or ()]
    return [one for one in found if one is not None]


def chosen_in(result: types.LogprobsResult) -> list[str | None]:
    """Return the text of each chosen token."""
    return [one.token for one in result.chosen_candidates or ()]


@pytest.mark.parametrize("most", [None, 0, 2])
def test_log_probabilities(gemini: genai.Client, engine: FakeEngine, most: int | None) -> None:
    engine.script = saying("ab")
    answer = ask(gemini, response_logprobs=True, logprobs=most)
    [result] = results_of(answer)
    assert chosen_in(result)[:2] == ["a", "b"]
    first = (result.chosen_candidates or [])[0]
    assert (first.token_id, first.log_probability) == (ord("a"), -0.5)
    tops = result.top_candidates
    assert (tops is None) == (not most)
    if tops:
        likeliest = [(one.token, one.log_probability) for one in tops[0].candidates or ()]
        assert likeliest == [("a", -0.5), ("b", -1.5)]
    assert answer.candidates is not None
    assert answer.candidates[0].avg_logprobs == -0.5


def test_log_probabilities_of_a_stream(gemini: genai.Client, engine: FakeEngine) -> None:
    engine.script = saying("ab")
    chunks = streamed(gemini, response_logprobs=True)
    tokens = [token for chunk in chunks for one in results_of(chunk) for token in chosen_in(one)]
    assert tokens[:2] == ["a", "b"]
    assert "".join(chunk.text or "" for chunk in chunks) == "ab"


def test_an_answer_has_none_that_are_not_asked_for(
    gemini: genai.Client, engine: FakeEngine
) -> None:
    assert not results_of(ask(gemini))
    assert engine.requests[-1].sampling.num_logprobs is None


def test_a_limit_that_is_reached(http: httpx.Client, served: Served, engine: FakeEngine) -> None:
    operator = {"authorization": f"Bearer {served.admin_key}"}
    made = httpx.post(f"{served.url}/admin/tenants", json={"name": "slow"}, headers=operator)
    tenant = made.json()["id"]
    key = httpx.post(f"{served.url}/admin/tenants/{tenant}/keys", headers=operator).json()["key"]
    limits = {"limits": {"requests_per_minute": 1, "burst_s": 60}}
    changed = httpx.patch(f"{served.url}/admin/tenants/{tenant}", json=limits, headers=operator)
    assert changed.status_code == 200, changed.text
    http.headers["x-goog-api-key"] = key
    assert post(http).status_code == 200
    refused = post(http)
    error = error_of(refused, 429, "RESOURCE_EXHAUSTED")
    [retry] = [one for one in error["details"] if one["@type"].endswith(".RetryInfo")]
    assert 0 < float(retry["retryDelay"].removesuffix("s")) <= 60
    assert int(refused.headers["retry-after"]) <= 60
