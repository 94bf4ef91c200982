"""`/v1/cache` with a scripted engine: the fields that it reads, its queries, and its refusals."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

import httpx
import pytest

from gateway.tenant_cache.routes import MOST_WAITING
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import MODEL, Served
from tests.doubles.waiting import wait_for

TEXT = "All the rules. " * 20
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": TEXT}]}
MESSAGES = {**CHAT, "max_tokens": 5, "cache_control": {"type": "ephemeral"}}


def send(served: Served, method: str, path: str, key: str | None = None, **body: Any) -> Any:
    headers = {"Authorization": f"Bearer {key or served.key}"}
    url = f"{served.url}/v1/cache/{path}"
    return httpx.request(method, url, json=body or None, headers=headers, timeout=60)


@pytest.mark.parametrize(
    ("url", "body"),
    [
        (None, CHAT),
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", MESSAGES),
        ("/v1/completions", {"model": MODEL, "prompt": TEXT}),
        ("/v1/responses", {"model": MODEL, "input": TEXT, "prompt_cache_retention": "24h"}),
    ],
)
def test_a_warmed_prompt_is_found_by_a_probe(
    served: Served, engine: FakeEngine, url: str | None, body: dict[str, Any]
) -> None:
    asked = {"body": body} if url is None else {"url": url, "body": body}
    before = send(served, "POST", "probe", **asked).json()
    assert (before["object"], before["cached_tokens"]) == ("cache.probe", 0)
    assert engine.requests == [], "a probe runs nothing"
    warmed = send(served, "POST", "warm", **asked).json()
    assert warmed["prompt_tokens"] == before["prompt_tokens"]
    is_marked = "cache_control" in body or "prompt_cache_retention" in body
    assert (warmed["cache_write_tokens"] > 0) == is_marked
    assert engine.requests[-1].sampling.max_tokens == 0
    after = send(served, "POST", "probe", **asked).json()
    assert 16 * (after["prompt_tokens"] // 16 - 1) <= after["cached_tokens"]
    assert after["saved_ms"] == 250.0


def test_a_response_s_continuation_is_the_stored_one_s(served: Served, engine: FakeEngine) -> None:
    """Continue a stored response like `/v1/responses`: another tenant's response is not found.

    The continuation itself is not stored.
    """
    headers = {"Authorization": f"Bearer {served.key}"}
    asked = {"model": MODEL, "input": TEXT}
    first = httpx.post(f"{served.url}/v1/responses", json=asked, headers=headers, timeout=60)
    body = {"model": MODEL, "input": "And?", "previous_response_id": first.json()["id"]}
    found = send(served, "POST", "probe", url="/v1/responses", body=body).json()
    assert found["prompt_tokens"] > len(TEXT)
    assert found["cached_tokens"] > len(TEXT) - 16
    other = send(served, "POST", "probe", served.other_key, url="/v1/responses", body=body)
    assert other.status_code == 400
    assert other.json()["error"]["code"] == "previous_response_not_found"
    count = len(engine.requests)
    warmed = send(served, "POST", "warm", url="/v1/responses", body=body)
    assert warmed.json()["prompt_tokens"] == found["prompt_tokens"]
    assert len(engine.requests) == count + 1


def test_marked_prefixes_are_listed_and_deleted(served: Served, engine: FakeEngine) -> None:
    assert send(served, "GET", "prefixes").json() == {"object": "list", "data": []}
    send(served, "POST", "warm", url="/v1/messages", body=MESSAGES)
    [one] = send(served, "GET", "prefixes").json()["data"]
    assert (one["tokens"] % 16, one["ttl_s"]) == (0, 300.0)
    deleted = send(served, "DELETE", f"prefixes/{one['id']}").json()
    assert (deleted["id"], deleted["deleted"], deleted["tokens"]) == (
        one["id"],
        True,
        one["tokens"],
    )
    assert send(served, "DELETE", f"prefixes/{one['id']}").status_code == 404


def test_a_tenant_has_one_list_in_work_and_some_waiting_and_others_do_not_wait(
    served: Served, engine: FakeEngine
) -> None:
    engine.holds_queries = True
    with ThreadPoolExecutor(MOST_WAITING + 3) as pool:
        own = [pool.submit(send, served, "GET", "prefixes") for _ in range(MOST_WAITING + 2)]
        [refused] = wait(own, return_when=FIRST_COMPLETED).done
        assert refused.result().status_code == 429
        other = pool.submit(send, served, "GET", "prefixes", key=served.other_key)
        wait_for(lambda: engine.held_queries == 2, 60.0)
        engine.holds_queries = False
        assert other.result().status_code == 200
        assert [one.result().status_code for one in own].count(200) == MOST_WAITING + 1


def test_a_tenant_has_one_probe_in_work_and_others_do_not_wait(
    served: Served, engine: FakeEngine
) -> None:
    engine.holds_queries = True
    with ThreadPoolExecutor(8) as pool:
        own = [pool.submit(send, served, "POST", "probe", body=CHAT) for _ in range(7)]
        wait_for(lambda: len(served.streams) == 7, 60.0)
        other = pool.submit(send, served, "POST", "probe", key=served.other_key, body=CHAT)
        wait_for(lambda: engine.held_queries >= 2, 60.0)
        assert engine.held_queries == 2
        engine.holds_queries = False
        assert {one.result().status_code for one in (*own, other)} == {200}


@pytest.mark.parametrize("name", ["prefix_", "prefix_xyz", "prefix_00", "00", "%00"])
def test_an_id_that_is_none_is_not_found(served: Served, engine: FakeEngine, name: str) -> None:
    assert send(served, "DELETE", f"prefixes/{name}").status_code == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"url": "/v1/messages"}, "body"),
        ({"url": "/v1/embeddings", "body": CHAT}, "url"),
        ({"body": {**CHAT, "messages": []}}, "messages"),
        ({"url": "/v1/completions", "body": {"model": MODEL, "prompt": ["a", "b"]}}, "body.prompt"),
        ({"url": "/v1/messages", "body": CHAT}, "max_tokens"),
        ({"url": "/v1/responses", "body": {"model": MODEL}}, "input"),
    ],
)
def test_what_is_no_request_is_refused(
    served: Served, engine: FakeEngine, body: dict[str, Any], param: str
) -> None:
    for path in ("probe", "warm"):
        answer = send(served, "POST", path, **body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
    other: dict[str, Any] = {"body": {**CHAT, "model": "another"}}
    assert send(served, "POST", "probe", **other).status_code == 404
    assert engine.requests == []


def test_without_a_key_nothing_is_told(served: Served, engine: FakeEngine) -> None:
    for method, path in (("POST", "probe"), ("POST", "warm"), ("GET", "prefixes")):
        assert send(served, method, path, key="no key").status_code == 401
