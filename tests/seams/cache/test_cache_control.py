"""Marked prefixes are created, read, kept and hidden from others, with the official clients.

The running server has a small cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.seams.support.server import Server, running_server

SMALL = {
    "RATOON_CACHE_TOKENS": "4096",
    "RATOON_HOST_CACHE_TOKENS": "0",
    "RATOON_DISK_CACHE_GIB": "0",
}
CITIES = ("Berlin", "Oslo", "Lisbon", "Madrid", "Vienna", "Prague", "Dublin", "Athens", "Zagreb")
ASK: list[Any] = [{"role": "user", "content": "What is the door code for Oslo?"}]
HOUR = {"type": "ephemeral", "ttl": "1h"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server whose tenants have partitions of 1,800 and 200 tokens, without lower tiers."""
    with running_server(tmp_path_factory.mktemp("small") / "data", SMALL) as server:
        yield server


def claude(server: Server, key: str | None = None) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=server.url, api_key=key or server.demo_key, max_retries=0, timeout=60
    )


def handbook(number: int, mark: Any = None) -> list[Any]:
    """Write a prompt of about 190 tokens that shares no prefix with prompts of other numbers."""
    rules = [
        f"The door code for {city} is {1000 + 17 * number + i}." for i, city in enumerate(CITIES)
    ]
    text = f"Handbook {number}. " + " ".join(rules)
    return [{"type": "text", "text": text, **({"cache_control": mark} if mark else {})}]


def ask(client: anthropic.Anthropic, system: Any, **fields: Any) -> anthropic.types.Usage:
    asked: dict[str, Any] = {"messages": ASK, "system": system, "max_tokens": 8, **fields}
    answer: anthropic.types.Message = client.messages.create(model="handbook", **asked)
    return answer.usage


def probed(server: Server, system: Any, key: str | None = None) -> dict[str, Any]:
    body = {"model": "handbook", "max_tokens": 8, "system": system, "messages": ASK}
    with server.client(key) as client:
        answer = client.post("/v1/cache/probe", json={"url": "/v1/messages", "body": body})
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


def prefixes(server: Server, key: str | None = None) -> list[dict[str, Any]]:
    with server.client(key) as client:
        data: list[dict[str, Any]] = (
            client.get("/v1/cache/prefixes").raise_for_status().json()["data"]
        )
        return data


def test_the_first_request_creates_and_the_second_reads(small: Server) -> None:
    client, system = claude(small), handbook(1, HOUR)
    total = client.messages.count_tokens(model="handbook", system=system, messages=ASK).input_tokens
    first, second = ask(client, system), ask(client, system)
    for usage in (first, second):
        created, read = usage.cache_creation_input_tokens, usage.cache_read_input_tokens
        assert usage.input_tokens + (created or 0) + (read or 0) == total
    assert (first.cache_creation_input_tokens or 0) > 100
    assert first.cache_creation is not None
    assert first.cache_creation.ephemeral_1h_input_tokens == first.cache_creation_input_tokens
    assert second.cache_creation_input_tokens == 0
    assert (second.cache_read_input_tokens or 0) >= (first.cache_creation_input_tokens or 0)
    with client.messages.stream(
        model="handbook", max_tokens=8, system=system, messages=ASK
    ) as stream:
        [start] = [one.message.usage for one in stream if one.type == "message_start"]
    assert start.cache_read_input_tokens == second.cache_read_input_tokens


def test_what_is_marked_outlives_ones_own_requests_without_a_mark(small: Server) -> None:
    client = claude(small)
    ask(client, handbook(2, HOUR))
    ask(client, handbook(3))
    kept, plain = probed(small, handbook(2)), probed(small, handbook(3))
    assert min(kept["cached_tokens"], plain["cached_tokens"]) > 100
    for number in range(10, 22):
        ask(client, handbook(number))
    assert probed(small, handbook(3))["cached_tokens"] < 50, "the control"
    assert probed(small, handbook(2))["cached_tokens"] > 100
    assert (ask(client, handbook(2)).cache_read_input_tokens or 0) > 100


def test_a_probe_says_what_the_request_then_finds(small: Server) -> None:
    ask(claude(small), handbook(4, HOUR))
    found = probed(small, handbook(4))
    usage = ask(claude(small), handbook(4))
    assert found["cached_tokens"] == usage.cache_read_input_tokens
    assert found["prompt_tokens"] == found["cached_tokens"] + usage.input_tokens


def test_nobody_else_sees_or_deletes_a_prefix(small: Server) -> None:
    ask(claude(small), handbook(5, HOUR))
    [mine, *_] = prefixes(small)
    assert mine["tokens"] > 100
    assert mine["cached_tokens"] == mine["tokens"]
    assert 3500 < mine["expires_in_s"] <= mine["ttl_s"] == 3600
    assert prefixes(small, small.demo2_key) == []
    assert probed(small, handbook(5), small.demo2_key)["cached_tokens"] < 16
    assert probed(small, handbook(5))["cached_tokens"] > 100, "the control"
    path = f"/v1/cache/prefixes/{mine['id']}"
    with small.client(small.demo2_key) as other, small.client() as owner:
        assert other.delete(path).status_code == 404
        assert probed(small, handbook(5))["cached_tokens"] > 100
        assert owner.delete(path).json()["tokens"] > 0
        assert owner.delete(path).status_code == 404
    assert mine["id"] not in [one["id"] for one in prefixes(small)]
    assert probed(small, handbook(5))["cached_tokens"] < 100


def test_a_prompt_that_was_warmed_is_read_by_its_first_request(small: Server) -> None:
    text = handbook(6)[0]["text"]
    body: dict[str, Any] = {
        "model": "handbook",
        "prompt_cache_retention": "24h",
        "messages": [{"role": "system", "content": text}, *ASK],
    }
    with small.client(small.demo2_key) as client:
        warmed = client.post("/v1/cache/warm", json={"body": body}).raise_for_status().json()
    assert warmed["cache_write_tokens"] > 100
    answer = small.openai(small.demo2_key).chat.completions.create(**body, max_tokens=4)
    assert answer.usage is not None
    details = answer.usage.prompt_tokens_details
    assert details is not None
    # The last token of a prompt is always computed.
    assert (details.cached_tokens or 0) >= warmed["cache_write_tokens"] - 1
    [mine] = prefixes(small, small.demo2_key)
    assert mine["ttl_s"] == 86400
