"""The `drafts` field: a request of any dialect can switch drafts off, and usage counts them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import MODEL, Served

MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "stream_options": {"include_usage": True}},
    "/v1/completions": {"prompt": "Hi", "stream_options": {"include_usage": True}},
    "/v1/responses": {"input": "Hi", "store": False},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 50},
}
DETAILS = ("completion_tokens_details", "output_tokens_details")


def ask(served: Served, path: str, *, stream: bool = False, **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {served.key}"}
    body = {"model": MODEL, **BODIES[path], "stream": stream, **fields}
    if not stream:
        body.pop("stream_options", None)
    return httpx.post(f"{served.url}{path}", json=body, headers=headers, timeout=60)


def drafted(usage: dict[str, Any]) -> dict[str, Any] | None:
    """Return the counts of drafts in a usage, or None if it has no counts."""
    [details] = [usage[name] for name in DETAILS if name in usage]
    ratoon = details.get("ratoon")
    return None if ratoon is None else ratoon["drafts"]


def last_usage(stream: str) -> dict[str, Any]:
    """Return the last usage in a stream's events."""
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    usages = [event.get("response", event).get("usage") for event in events]
    found: dict[str, Any] = [usage for usage in usages if usage][-1]
    return found


@pytest.mark.parametrize("path", BODIES)
def test_they_are_on_unless_a_request_says_no(
    served: Served, engine: FakeEngine, path: str
) -> None:
    for fields in ({}, {"drafts": True}, {"drafts": None}, {"drafts": False}):
        assert ask(served, path, **fields).status_code == 200
    assert [one.drafts for one in engine.requests] == [True, True, True, False]
    refused = ask(served, path, drafts="no")
    assert refused.status_code == 400
    assert "drafts" in refused.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_the_usage_has_them_by_source(
    served: Served, engine: FakeEngine, path: str, stream: bool
) -> None:
    def usage() -> dict[str, Any]:
        answer = ask(served, path, stream=stream)
        return last_usage(answer.text) if stream else answer.json()["usage"]

    assert drafted(usage()) is None
    engine.drafts = {"tree": (6, 5), "own": (4, 0)}
    assert drafted(usage()) == {
        "own": {"drafted_tokens": 4, "accepted_tokens": 0},
        "tree": {"drafted_tokens": 6, "accepted_tokens": 5},
    }
