"""All errors have Anthropic's form, and raise the official client's exceptions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from engine.errors import EngineDied, QueueFull
from engine.link.messages import Generate
from tests.doubles.engine.fake_engine import (
    FakeEngine,
    Pace,
    at_once,
    failing_at,
    hanging_at,
    saying,
)
from tests.doubles.gateway.served import Served, config_of, serving
from tests.gateway.conftest import BOUNDS
from tests.gateway.dialects.anthropic.asking import (
    HI,
    ask,
    assistant,
    error_of,
    events_of,
    post,
    user,
)

COUNT = "/v1/messages/count_tokens"
INVALID = "invalid_request_error"
MISSING, UNSUPPORTED, VALUE = "missing_required_parameter", "unsupported_parameter", "invalid_value"


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no model": ({"model": None}, "model", MISSING),
    "no messages": ({"messages": None}, "messages", MISSING),
    "messages of none": ({"messages": []}, "messages", VALUE),
    "only an empty prefill": ({"messages": [assistant("")]}, "messages", VALUE),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content", MISSING),
    "no role": ({"messages": [{"content": "x"}]}, "messages[0].role", MISSING),
    "another role": ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", VALUE),
    "a block of no type": (
        {"messages": [user([{"text": "x"}])]},
        "messages[0].content[0].type",
        MISSING,
    ),
    "a block of an unknown type": (
        {"messages": [user([text("x"), {"type": "song"}])]},
        "messages[0].content[1].type",
        VALUE,
    ),
    "text of no text": (
        {"messages": [user([{"type": "text"}])]},
        "messages[0].content[0].text",
        MISSING,
    ),
    "an image": (
        {"messages": [*HI, user([text("x"), {"type": "image", "source": {}}])]},
        "messages[1].content[1]",
        UNSUPPORTED,
    ),
    "a document": (
        {"messages": [user([{"type": "document", "source": {}}])]},
        "messages[0].content[0]",
        UNSUPPORTED,
    ),
    "a summary that is sealed": (
        {"messages": [*HI, assistant([{"type": "compaction", "content": "x"}]), *HI]},
        "messages[1].content[0]",
        UNSUPPORTED,
    ),
    "an image in the system": ({"system": [{"type": "image"}]}, "system[0].type", VALUE),
    "a mark of another kind": (
        {"system": [{**text("x"), "cache_control": {"type": "forever"}}]},
        "system[0].cache_control.type",
        VALUE,
    ),
    "a mark for another time": (
        {"cache_control": {"type": "ephemeral", "ttl": "2h"}},
        "cache_control.ttl",
        VALUE,
    ),
    "servers that are none": ({"mcp_servers": ["https://x"]}, "mcp_servers[0]", VALUE),
    "more results than messages may be": (
        {"messages": [user([{"type": "tool_result", "tool_use_id": "a"}] * 4097)]},
        "messages",
        VALUE,
    ),
    "an effort that is a text": (
        {"output_config": {"effort": "x" * 65}},
        "output_config.effort",
        VALUE,
    ),
    "a container": ({"container": "c"}, "container", UNSUPPORTED),
    "a place": ({"inference_geo": "eu"}, "inference_geo", UNSUPPORTED),
    "a thread of another kind": ({"thread": {"type": "fork"}}, "thread.type", VALUE),
    "a thread that continues nothing": (
        {"thread": {"type": "continue"}},
        "thread.previous_message_id",
        MISSING,
    ),
    "thinking of another kind": ({"thinking": {"type": "hard"}}, "thinking.type", VALUE),
    "a format of another kind": (
        {"output_config": {"format": {"type": "xml", "schema": {}}}},
        "output_config.format.type",
        VALUE,
    ),
    "a format without a schema": (
        {"output_config": {"format": {"type": "json_schema"}}},
        "output_config.format.schema",
        MISSING,
    ),
}
BAD_ANSWER: dict[str, tuple[dict[str, Any], str, str]] = {
    "no maximum": ({"max_tokens": None}, "max_tokens", MISSING),
    "a maximum below nothing": ({"max_tokens": -1}, "max_tokens", VALUE),
    "too hot": ({"temperature": 1.5}, "temperature", VALUE),
    "no nucleus": ({"top_p": 0}, "top_p", VALUE),
    "below no token": ({"top_k": -1}, "top_k", VALUE),
    "an empty stop": ({"stop_sequences": ["a", ""]}, "stop_sequences", VALUE),
    "stops without number": ({"stop_sequences": ["a"] * 17}, "stop_sequences", VALUE),
    "a stop that is none": ({"stop_sequences": ["a", 1]}, "stop_sequences[1]", VALUE),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_prompt_is_refused_by_its_field(
    http: httpx.Client, engine: FakeEngine, name: str
) -> None:
    fields, param, code = BAD[name]
    for path in ("/v1/messages", COUNT):
        error = error_of(post(http, path, **fields), 400, INVALID)
        assert (error["param"], error["code"]) == (param, code)
    assert engine.requests == []


@pytest.mark.parametrize("name", BAD_ANSWER)
def test_a_bad_wish_for_an_answer_is_refused_by_its_field(
    http: httpx.Client, engine: FakeEngine, name: str
) -> None:
    fields, param, code = BAD_ANSWER[name]
    error = error_of(post(http, **fields), 400, INVALID)
    assert (error["param"], error["code"]) == (param, code)
    assert engine.requests == []


def test_a_refused_image_is_named_by_its_path(http: httpx.Client) -> None:
    """Name the image as Anthropic's API does, so that Claude Code goes on without it."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}
    read = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "image"}]}
    file = {"type": "document", "source": {}}
    error = error_of(post(http, messages=[*HI, assistant([use]), user([read])]), 400, INVALID)
    assert error["message"].startswith("messages.2.content.0.tool_result.content.0.image: ")
    error = error_of(post(http, messages=[user([text("x"), file])]), 400, INVALID)
    assert error["message"].startswith("messages.0.content.1.document: ")


def test_what_asks_for_nothing_is_no_wish(http: httpx.Client, engine: FakeEngine) -> None:
    assert post(http, mcp_servers=[], container="", thread=None).status_code == 200


def test_a_prompt_beyond_the_context(http: httpx.Client, engine: FakeEngine) -> None:
    """Refuse a prompt longer than the context with the message after which agents compact their
    history.
    """
    long = [user("x" * 5000)]
    error = error_of(post(http, messages=long), 400, INVALID)
    assert error["message"].startswith("prompt is too long: ")
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert post(http, COUNT, messages=long).json()["input_tokens"] > 5000, "which can be counted"


def test_no_error_repeats_what_was_sent(http: httpx.Client, engine: FakeEngine) -> None:
    canary = "canary-0c4e77d1"
    bodies: list[dict[str, Any]] = [
        {"messages": [user([{"type": canary}])]},
        {"messages": [{"role": canary, "content": canary}]},
        {"messages": [user([{"type": "image", "source": canary}])]},
        {"messages": [{"role": "system", "content": [{"type": "tool_removal", "tool": canary}]}]},
        {"tools": [{"name": canary}]},
        {"tools": [{"name": canary, "input_schema": {}}] * 2},
        {"tool_choice": {"type": "tool", "name": canary}},
        {"container": canary},
        {"model": canary},
    ]
    for body in bodies:
        answer = post(http, **body)
        assert answer.status_code in (400, 404)
        assert canary not in answer.text


def test_keys(http: httpx.Client, served: Served, engine: FakeEngine) -> None:
    for headers in (
        {"x-api-key": "nobody"},
        {"x-api-key": served.key, "authorization": "Bearer x"},
    ):
        answer = http.post("/v1/messages", json={}, headers=headers)
        error_of(answer, 401, "authentication_error")
        assert answer.headers["x-should-retry"] == "false"
    error_of(httpx.post(f"{served.url}/v1/messages", json={}), 401, "authentication_error")
    bearer = {"authorization": f"Bearer {served.key}"}
    body = {"model": "tiny", "max_tokens": 1, "messages": HI}
    assert httpx.post(f"{served.url}/v1/messages", json=body, headers=bearer).status_code == 200


def test_paths_methods_and_bodies(http: httpx.Client, engine: FakeEngine) -> None:
    error_of(http.post("/v1/messages/batches", json={}), 404, "not_found_error")
    error = error_of(post(http, model="claude"), 404, "not_found_error")
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    wrong = http.get("/v1/messages")
    error_of(wrong, 405, INVALID)
    assert wrong.headers["allow"] == "POST"
    big = http.post("/v1/messages", content=b"x" * (BOUNDS.max_body_bytes + 1))
    error_of(big, 413, "request_too_large")
    error_of(http.post("/v1/messages", content=b"{"), 400, INVALID)
    zipped = http.post("/v1/messages", content=b"x", headers={"content-encoding": "br"})
    error_of(zipped, 415, INVALID)
    other = http.post("/v1/messagesx", json={})
    assert "request-id" not in other.headers, "another dialect's path"


def test_the_clients_exceptions(
    claude: anthropic.Anthropic, served: Served, engine: FakeEngine
) -> None:
    with pytest.raises(anthropic.BadRequestError) as bad:
        ask(claude, system=[{"type": "image"}])
    assert bad.value.request_id == bad.value.response.headers["request-id"]
    assert bad.value.type == INVALID
    with pytest.raises(anthropic.NotFoundError):
        ask(claude, model="another")
    with pytest.raises(anthropic.AuthenticationError):
        ask(claude.with_options(api_key="nobody"))
    with pytest.raises(anthropic.RequestTooLargeError):
        ask(claude, system="x" * BOUNDS.max_body_bytes)
    engine.pace = failing_at(0, QueueFull("full", retry_after_s=3.0))
    with pytest.raises(anthropic.RateLimitError) as full:
        ask(claude)
    assert full.value.response.headers["retry-after"] == "3"
    assert full.value.type == "rate_limit_error"


def test_while_the_engine_is_away(
    claude: anthropic.Anthropic, http: httpx.Client, engine: FakeEngine
) -> None:
    engine.welcome = None
    for path in ("/v1/messages", COUNT):
        answer = post(http, path)
        error_of(answer, 529, "overloaded_error")
        assert int(answer.headers["retry-after"]) >= 1
    with pytest.raises(anthropic.OverloadedError):
        ask(claude)


def test_an_engine_that_dies(http: httpx.Client, engine: FakeEngine) -> None:
    engine.pace = failing_at(1, EngineDied("it died"))
    error = error_of(post(http), 529, "overloaded_error")
    assert error["code"] == "engine_died"
    engine.pace = at_once
    assert post(http).status_code == 200, "the control"


@pytest.fixture
def limited(http: httpx.Client, served: Served) -> Iterator[Any]:
    operator = httpx.Client(base_url=served.url, headers={"x-api-key": served.admin_key})

    def key_of(name: str, limits: dict[str, Any]) -> str:
        made = operator.post("/admin/tenants", json={"name": name, "limits": limits}).json()
        return str(operator.post(f"/admin/tenants/{made['id']}/keys", json={}).json()["key"])

    with operator:
        yield key_of


def test_limits(http: httpx.Client, limited: Any, engine: FakeEngine) -> None:
    engine.script = saying("x")
    http.headers["x-api-key"] = limited(
        "slow", {"requests_per_minute": 3, "tokens_per_minute": 6000}
    )
    whole, streamed, counted = post(http), post(http, stream=True), post(http, COUNT)
    for answer, left in ((whole, "2"), (streamed, "1"), (counted, "0")):
        assert answer.status_code == 200
        assert answer.headers["anthropic-ratelimit-requests-limit"] == "3"
        assert answer.headers["anthropic-ratelimit-requests-remaining"] == left
        assert answer.headers["anthropic-ratelimit-tokens-limit"] == "6000"
        assert int(answer.headers["anthropic-ratelimit-tokens-remaining"]) < 6000
        assert answer.headers["anthropic-ratelimit-tokens-reset"].startswith("20")
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
    refused = post(http)
    error = error_of(refused, 429, "rate_limit_error")
    assert error["code"] == "rate_limit_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert "x-should-retry" not in refused.headers, "waiting helps"


def test_a_request_that_can_never_pass_is_not_to_be_sent_again(
    http: httpx.Client, limited: Any, engine: FakeEngine
) -> None:
    http.headers["x-api-key"] = limited("small", {"tokens_per_minute": 100})
    refused = post(http, messages=[{"role": "user", "content": "x" * 100}])
    error_of(refused, 429, "rate_limit_error")
    assert "retry-after" not in refused.headers
    assert refused.headers["x-should-retry"] == "false"
    assert post(http).status_code == 200, "a shorter prompt; max_tokens is an upper bound"


def test_a_spent_budget(http: httpx.Client, served: Served, limited: Any) -> None:
    key = limited("poor", {"budget": {"units": 0.000001}})
    http.headers["x-api-key"] = key
    refused = post(http)
    error = error_of(refused, 429, "rate_limit_error")
    assert error["code"] == "insufficient_quota"
    assert refused.headers["anthropic-ratelimit-unified-status"] == "rejected"
    asked: list[httpx.URL] = []
    with anthropic.Anthropic(base_url=served.url, api_key=key, max_retries=5) as client:
        send = client._client.send

        def counted(request: Any, **more: Any) -> Any:
            asked.append(request.url)
            return send(request, **more)

        client._client.send = counted  # type: ignore[method-assign]
        with pytest.raises(anthropic.RateLimitError):
            ask(client)
    assert len(asked) == 1, "the client does not ask again"


def told(event: threading.Event) -> Pace:
    """Send two tokens and set `event`, then send nothing until the request is cancelled."""
    hang = hanging_at(2)

    async def pace(request: Generate, at: int) -> None:
        if at >= 2:
            event.set()
        await hang(request, at)

    return pace


@pytest.mark.parametrize("stream", [False, True])
def test_while_the_gateway_stops(tiny_model: Path, tmp_path: Path, stream: bool) -> None:
    engine, hangs = FakeEngine(), threading.Event()
    engine.script, engine.pace = saying("abcd"), told(hangs)
    with (
        ThreadPoolExecutor(1) as pool,
        serving(config_of(tiny_model, tmp_path, grace_s=0.3), engine) as served,
        httpx.Client(base_url=served.url, headers={"x-api-key": served.key}, timeout=60) as http,
    ):
        asked = pool.submit(post, http, stream=stream)
        assert hangs.wait(10)
        served.server.should_exit = True
        answer = asked.result(20)
    if not stream:
        assert error_of(answer, 529, "overloaded_error")["code"] == "shutting_down"
        return
    name, value = events_of(answer)[-1]
    assert name == "error"
    assert (value["error"]["type"], value["error"]["code"]) == ("overloaded_error", "shutting_down")
    assert value["request_id"] == answer.headers["request-id"]
