"""A whole server tells official clients why a prompt missed, and the engine counts the reasons."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest

from tests.seams.support.server import Server

CITIES = ["Berlin", "Oslo", "Lisbon", "Madrid", "Vienna", "Prague", "Dublin", "Athens"]
CODES = " ".join(f"The code for {city} is {1000 + 389 * i}." for i, city in enumerate(CITIES))
DATED = "It is 2026-11-{}. " + CODES
HEADER = "x-anthropic-billing-header: cc_version=2.1.100.{}; cc_entrypoint=cli;"
WHY = {"ratoon": {"explain": True}}


def chat(server: Server, key: str, system: str, **extra: Any) -> Any:
    messages: list[Any] = [
        {"role": "system", "content": system},
        {"role": "user", "content": "What is the code for Oslo?"},
    ]
    with server.openai(key) as client:
        return client.chat.completions.create(
            model="handbook", messages=messages, max_tokens=8, temperature=0, extra_body=extra
        )


def message(server: Server, key: str, first: str, **extra: Any) -> Any:
    blocks: list[Any] = [{"type": "text", "text": text} for text in (first, CODES)]
    with anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0) as client:
        return client.messages.create(
            model="handbook",
            max_tokens=8,
            system=blocks,
            messages=[{"role": "user", "content": "What is the code for Oslo?"}],
            extra_body=extra,
        )


def test_a_date_costs_what_comes_after_it(server: Server) -> None:
    key = server.new_tenant()
    first = chat(server, key, DATED.format("22"), **WHY)
    assert first.ratoon["cache_miss"]["reason"] == "never_seen"
    second = chat(server, key, DATED.format("23"), **WHY)
    miss = second.ratoon["cache_miss"]
    assert (miss["reason"], miss["change"], miss["part"]) == (
        "system_changed",
        "date",
        "messages[0]",
    )
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert miss["cached_tokens"] == cached <= miss["token"] < 40
    assert miss["lost_tokens"] == miss["reusable_tokens"] - cached > 50
    assert miss["lost_ms"] > 0
    third = chat(server, key, DATED.format("23"), **WHY)
    assert third.ratoon["cache_miss"]["reason"] == "none", "the control"


def test_what_an_operator_flushed_is_evicted(server: Server) -> None:
    key = server.new_tenant()
    chat(server, key, CODES)
    with server.client(server.admin_key) as client:
        newest = client.get("/admin/tenants").json()["tenants"][-1]["id"]
        client.post(f"/admin/tenants/{newest}/disable").raise_for_status()
        client.post(f"/admin/tenants/{newest}/enable").raise_for_status()
    miss = chat(server, key, CODES, **WHY).ratoon["cache_miss"]
    assert (miss["reason"], miss["token"], miss["part"]) == ("evicted", 0, None)


def test_a_billing_header_keeps_no_message_from_the_cache(server: Server) -> None:
    key = server.new_tenant()
    first = message(server, key, "You answer for release 7b4.")
    named = {"diagnostics": {"previous_message_id": first.id}}
    changed = message(server, key, "You answer for release 8c5.", **named)
    reason = changed.diagnostics.cache_miss_reason
    assert reason.type == "system_changed", "the control"
    assert reason.cache_missed_input_tokens > 50
    first = message(server, key, HEADER.format("9d6"))
    named = {"diagnostics": {"previous_message_id": first.id}}
    second = message(server, key, HEADER.format("1e7"), **named)
    assert second.diagnostics is None
    assert second.usage.input_tokens == 1, "the last token of a prompt is always computed"


def test_canonical_prompts_hit_in_spite_of_a_billing_header(server: Server) -> None:
    key = server.new_tenant()
    chat(server, key, f"{HEADER.format('7b4')}\n{CODES}")
    miss = chat(server, key, f"{HEADER.format('8c5')}\n{CODES}", **WHY).ratoon["cache_miss"]
    assert (miss["reason"], miss["change"]) == ("system_changed", "billing_header"), "the control"
    with server.client(server.admin_key) as client:
        tenant = client.get("/admin/tenants").json()["tenants"][-1]["id"]
        body = {"canonical_prompts": True}
        client.patch(f"/admin/tenants/{tenant}", json=body).raise_for_status()
    chat(server, key, f"{HEADER.format('9d6')}\n{CODES}")
    miss = chat(server, key, f"{HEADER.format('1e7')}\n{CODES}", **WHY).ratoon["cache_miss"]
    assert (miss["reason"], miss["lost_tokens"]) == ("none", None)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_an_unknown_option_is_refused(server: Server, path: str) -> None:
    said: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
    body = {"model": "handbook", "input": "hi", **said, "ratoon": {"explains": True}}
    with server.client() as http:
        answer: httpx.Response = http.post(path, json=body)
    assert answer.status_code == 400
    assert "ratoon" in answer.text
