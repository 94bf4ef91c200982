"""Cached contents are created, used, listed, renewed and deleted by their own tenant only.

The official client asks.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from google import genai
from google.genai import errors, types

from engine.errors import QueueFull
from engine.link.messages import Generate
from gateway.config import Bounds
from gateway.dialects.gemini.cached import CachedContents, Stored
from gateway.dialects.stored_records import StoredRecords
from gateway.errors import Forbidden
from tests.doubles.engine.fake_engine import FakeEngine, at_once, failing_at, saying
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.gateway.dialects.gemini.asking import (
    CALL,
    CLOCK,
    ask,
    error_of,
    param_of,
    parts_of,
    post,
    shown,
    streamed,
    usage_of,
)
from tests.gateway.state.contract import a_tenant
from tests.gateway.state.memory_store import MemoryStore

DOCUMENT = "The support code for Berlin is 4821. " * 8
CONFIG: dict[str, Any] = {
    "system_instruction": "Answer from the document.",
    "contents": [types.Content(role="user", parts=[types.Part(text=DOCUMENT)])],
    "ttl": "600s",
    "display_name": "codes",
}


def create(client: genai.Client, **config: Any) -> types.CachedContent:
    """Create a cached content from the document."""
    return client.caches.create(model=MODEL, config={**CONFIG, **config})  # type: ignore[arg-type]


def name_of(content: types.CachedContent) -> str:
    """Return the cached content's resource name."""
    assert content.name is not None
    return content.name


def left_of(content: types.CachedContent) -> float:
    """Return the seconds until the content expires."""
    assert content.expire_time is not None
    return content.expire_time.timestamp() - time.time()


@pytest.fixture(autouse=True)
def nothing_is_left(gemini: genai.Client) -> Iterator[None]:
    """Delete the tenant's cached contents after the test."""
    yield
    for content in list(gemini.caches.list()):
        gemini.caches.delete(name=name_of(content))


def marked(served: Served) -> list[dict[str, Any]]:
    """Return the tenant's prefixes that the engine retains."""
    headers = {"authorization": f"Bearer {served.key}"}
    found: list[dict[str, Any]] = httpx.get(
        f"{served.url}/v1/cache/prefixes", headers=headers
    ).json()["data"]
    return found


def test_a_content_is_created_and_used(
    gemini: genai.Client, engine: FakeEngine, served: Served
) -> None:
    content = create(gemini)
    assert name_of(content).startswith("cachedContents/")
    assert (content.model, content.display_name) == (f"models/{MODEL}", "codes")
    assert content.create_time == content.update_time
    assert 590 < left_of(content) <= 600
    assert content.usage_metadata is not None
    tokens = content.usage_metadata.total_token_count or 0
    assert tokens == len(f"|system:Answer from the document.|user:{DOCUMENT}") + 1  # plus BOS
    assert engine.requests[-1].sampling.max_tokens == 0
    [prefix] = marked(served)
    assert 590 < prefix["expires_in_s"] <= 600
    engine.script = saying("4821")
    answer = ask(gemini, "Which is it?", cached_content=name_of(content))
    assert answer.text == "4821"
    expected = f"|system:Answer from the document.|user:{DOCUMENT}\nWhich is it?|assistant:"
    assert shown(engine) == expected
    used = usage_of(answer)
    assert used.prompt_token_count == len(expected) + 1
    assert (used.cached_content_token_count or 0) >= tokens // 16 * 16
    chunks = streamed(gemini, "And where?", cached_content=name_of(content))
    assert "".join(chunk.text or "" for chunk in chunks) == "4821"
    assert usage_of(chunks[-1]).cached_content_token_count == tokens // 16 * 16


def test_tools_belong_to_a_content(gemini: genai.Client, engine: FakeEngine) -> None:
    calling = types.ToolConfig(
        function_calling_config=types.FunctionCallingConfig(
            mode=types.FunctionCallingConfigMode.ANY
        )
    )
    tools = [types.Tool(function_declarations=[types.FunctionDeclaration(**CLOCK)])]
    content = create(gemini, tools=tools, tool_config=calling)
    engine.script = saying(CALL)
    [part] = parts_of(ask(gemini, cached_content=name_of(content)))
    assert part.function_call is not None
    assert engine.requests[-1].sampling.grammar is not None
    with pytest.raises(errors.ClientError, match="can not be used"):
        ask(gemini, cached_content=name_of(content), system_instruction="Be brief.")


def test_contents_are_shown_and_listed_by_pages(gemini: genai.Client) -> None:
    made = [create(gemini, display_name=f"codes {number}") for number in range(3)]
    assert gemini.caches.get(name=name_of(made[1])) == made[1]
    listed = list(gemini.caches.list(config={"page_size": 2}))
    assert [one.name for one in listed] == [one.name for one in made]
    assert [one.display_name for one in listed] == ["codes 0", "codes 1", "codes 2"]


@pytest.mark.parametrize("by", ["ttl", "expire_time"])
def test_a_content_expires_later(
    gemini: genai.Client, engine: FakeEngine, served: Served, by: str
) -> None:
    content = create(gemini)
    later: Any = {"ttl": "7200s"}
    if by == "expire_time":
        later = {"expire_time": datetime.now(UTC) + timedelta(hours=2)}
    renewed = gemini.caches.update(name=name_of(content), config=later)
    assert 7190 < left_of(renewed) <= 7200
    assert renewed.create_time == content.create_time
    assert gemini.caches.get(name=name_of(content)) == renewed
    assert marked(served)[0]["expires_in_s"] > 7000


def test_an_update_of_nothing_names_what_it_lacks(
    gemini: genai.Client, http: httpx.Client, engine: FakeEngine
) -> None:
    """Refuse an update without fields, which the client sends as a request without a body."""
    content = create(gemini)
    with pytest.raises(errors.ClientError) as raised:
        gemini.caches.update(name=name_of(content))
    assert (raised.value.code, raised.value.status) == (400, "INVALID_ARGUMENT")
    assert "`ttl` or `expireTime`" in str(raised.value)
    for body in (b"", b"{}", b'{"displayName": "other"}'):
        refused = http.patch(f"/v1beta/{name_of(content)}", content=body)
        assert (refused.status_code, param_of(refused.json()["error"])) == (400, "ttl"), (
            refused.text
        )
    assert gemini.caches.get(name=name_of(content)) == content
    assert http.patch(f"/v1beta/{name_of(content)}", content=b'{"ttl": "9s"}').is_success


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        ("/v1beta/cachedContents", "model"),
        (f"/v1beta/models/{MODEL}:generateContent", "contents"),
        (f"/v1beta/models/{MODEL}:embedContent", "content"),
        (f"/v1beta/models/{MODEL}:batchEmbedContents", "requests"),
    ],
)
def test_an_empty_body_is_an_empty_message(http: httpx.Client, path: str, missing: str) -> None:
    for body in (b"", b"{}"):
        refused = http.post(path, content=body)
        assert (refused.status_code, param_of(refused.json()["error"])) == (400, missing), (
            refused.text
        )


def test_a_deleted_content_leaves_the_cache(
    gemini: genai.Client, engine: FakeEngine, served: Served
) -> None:
    content = create(gemini)
    assert marked(served)
    gemini.caches.delete(name=name_of(content))
    assert not marked(served)
    for use in (
        lambda: gemini.caches.get(name=name_of(content)),
        lambda: gemini.caches.delete(name=name_of(content)),
        lambda: gemini.caches.update(name=name_of(content), config={"ttl": "9s"}),
        lambda: ask(gemini, cached_content=name_of(content)),
    ):
        with pytest.raises(errors.ClientError) as raised:
            use()
        assert (raised.value.code, raised.value.status) == (403, "PERMISSION_DENIED")


def test_equal_contents_leave_the_cache_with_the_last(
    gemini: genai.Client, engine: FakeEngine, served: Served
) -> None:
    one, other = create(gemini), create(gemini)
    longer = create(gemini, contents=[DOCUMENT + "x" * 40])
    assert len(marked(served)) == 2
    gemini.caches.delete(name=name_of(one))
    assert len(marked(served)) == 2
    answer = ask(gemini, "Which is it?", cached_content=name_of(other))
    assert (usage_of(answer).cached_content_token_count or 0) > len(DOCUMENT)
    gemini.caches.delete(name=name_of(other))
    assert len(marked(served)) == 1, "the control"
    gemini.caches.delete(name=name_of(longer))
    assert not marked(served)


def test_a_deletion_leaves_the_kv_of_an_equal_content_that_is_being_created(
    gemini: genai.Client, engine: FakeEngine, served: Served
) -> None:
    one, computed = create(gemini), threading.Event()

    async def until_computed(_: Generate, __: int) -> None:
        await asyncio.to_thread(computed.wait)

    engine.pace = until_computed
    with ThreadPoolExecutor(1) as others:
        other = others.submit(create, gemini)
        try:
            assert engine.wait_until(lambda engine: engine.running == 1)
            gemini.caches.delete(name=name_of(one))
            prefixes = marked(served)
        finally:
            computed.set()
        assert len(prefixes) == 1
        gemini.caches.delete(name=name_of(other.result()))
    assert not marked(served), "the control"


def test_a_content_that_could_not_be_computed_is_not_stored(
    gemini: genai.Client, engine: FakeEngine
) -> None:
    engine.pace = failing_at(0, QueueFull("full"))
    with pytest.raises(errors.APIError):
        create(gemini)
    assert not list(gemini.caches.list())
    engine.pace = at_once
    create(gemini)
    assert len(list(gemini.caches.list())) == 1, "the control"


async def test_a_content_that_is_gone_meanwhile_is_missing() -> None:
    """Delete a content twice at once, or delete and renew it: the later request gets Gemini's error
    403.
    """
    store = MemoryStore()
    await store.create(a_tenant())
    contents = CachedContents(StoredRecords(store, Bounds(), lambda: 1.0))
    stored = Stored(
        model=MODEL, display_name=None, updated_at=1.0, tokens=9, salt=None, prefix=msgspec.Raw()
    )
    found = await contents.keep(a_tenant().id, stored, 60.0, bytes(16))
    assert (await contents.renew(found, 90.0)).record.expires_at == 91.0, "the control"
    assert await contents.has_any(a_tenant().id, bytes(16))
    await contents.delete(found)
    assert not await contents.has_any(a_tenant().id, bytes(16))
    with pytest.raises(Forbidden):
        await contents.delete(found)
    with pytest.raises(Forbidden):
        await contents.renew(found, 60.0)


def test_a_content_leaves_the_cache_although_the_tenant_s_bound_was_lowered(
    gemini: genai.Client, engine: FakeEngine, served: Served
) -> None:
    content = create(gemini)
    assert marked(served)
    with httpx.Client(base_url=served.url, headers={"x-api-key": served.admin_key}) as operator:
        tenants = operator.get("/admin/tenants").json()["tenants"]
        for tenant in tenants:
            lowered = {"limits": {"max_request_tokens": 10}}
            operator.patch(f"/admin/tenants/{tenant['id']}", json=lowered).raise_for_status()
        with pytest.raises(errors.ClientError, match="10 tokens"):
            ask(gemini, cached_content=name_of(content))
        gemini.caches.delete(name=name_of(content))
        for tenant in tenants:
            before = {"limits": tenant["limits"]}
            operator.patch(f"/admin/tenants/{tenant['id']}", json=before).raise_for_status()
    assert not marked(served)


def test_a_content_is_its_tenant_s_alone(
    gemini: genai.Client, served: Served, engine: FakeEngine
) -> None:
    content = create(gemini)
    options: Any = {"base_url": served.url}
    with genai.Client(api_key=served.other_key, http_options=options) as stranger:
        assert not list(stranger.caches.list())
        for use in (
            lambda: stranger.caches.get(name=name_of(content)),
            lambda: stranger.caches.delete(name=name_of(content)),
            lambda: stranger.caches.update(name=name_of(content), config={"ttl": "9s"}),
            lambda: ask(stranger, cached_content=name_of(content)),
        ):
            with pytest.raises(errors.ClientError) as raised:
                use()
            assert (raised.value.code, raised.value.status) == (403, "PERMISSION_DENIED")
        theirs = create(stranger)
        assert len(list(gemini.caches.list())) == len(list(stranger.caches.list())) == 1
        stranger.caches.delete(name=name_of(theirs))
    assert gemini.caches.get(name=name_of(content)) == content


def test_a_content_has_its_salt(http: httpx.Client, engine: FakeEngine) -> None:
    body = {
        "model": f"models/{MODEL}",
        "contents": [{"parts": [{"text": DOCUMENT}]}],
        "cacheSalt": "a",
    }
    name = http.post("/v1beta/cachedContents", json=body).json()["name"]
    same = post(http, cachedContent=name, cacheSalt="a")
    assert same.json()["usageMetadata"]["cachedContentTokenCount"] > 200
    error_of(post(http, cachedContent=name, cacheSalt="b"), 403, "PERMISSION_DENIED")
    error_of(post(http, cachedContent=name), 403, "PERMISSION_DENIED")
    count = f"/v1beta/models/{MODEL}:countTokens"
    asked = {"contents": [{"parts": [{"text": "a"}]}], "cachedContent": name}
    salted = {"generateContentRequest": {**asked, "cacheSalt": "a"}}
    assert http.post(count, json=salted).json()["totalTokens"] > 200
    error_of(http.post(count, json={"generateContentRequest": asked}), 403, "PERMISSION_DENIED")


def test_a_content_is_no_response(http: httpx.Client, engine: FakeEngine, served: Served) -> None:
    body = {"model": MODEL, "contents": [{"parts": [{"text": "a"}]}]}
    name = http.post("/v1/cachedContents", json=body).json()["name"]
    asked = {"model": MODEL, "input": "hi", "previous_response_id": name}
    headers = {"authorization": f"Bearer {served.key}"}
    answer = httpx.post(f"{served.url}/v1/responses", json=asked, headers=headers)
    assert answer.json()["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"ttl": "soon"}, "ttl"),
        ({"ttl": "0s"}, "ttl"),
        ({"ttl": "99999999s"}, "ttl"),
        ({"expireTime": "tomorrow"}, "expireTime"),
        ({"expireTime": "2020-01-01T00:00:00Z"}, "expireTime"),
        ({"ttl": "9s", "expireTime": "2099-01-01T00:00:00Z"}, "expireTime"),
        ({"contents": []}, "contents"),
        ({"contents": [{"parts": [{"text": "x" * (2 << 20)}]}]}, None),
        (
            {"contents": [{"parts": [{"fileData": {"fileUri": "a"}}]}]},
            "cachedContent.parts[0].fileData",
        ),
        (
            {"tools": [{"functionDeclarations": [CLOCK, CLOCK]}]},
            "tools[0].functionDeclarations[1].name",
        ),
    ],
)
def test_what_cannot_be_cached_is_refused_by_name(
    http: httpx.Client, engine: FakeEngine, fields: dict[str, Any], param: str | None
) -> None:
    body = {"model": MODEL, "contents": [{"parts": [{"text": "a"}]}], **fields}
    answer = http.post("/v1beta/cachedContents", json=body)
    code = 413 if param is None else 400
    assert param_of(error_of(answer, code, "INVALID_ARGUMENT")) == param
    assert not engine.requests


@pytest.mark.parametrize(("name", "value"), [("pageToken", "x"), ("pageSize", "-1")])
def test_a_page_that_is_not_there(http: httpx.Client, name: str, value: str) -> None:
    answer = http.get("/v1beta/cachedContents", params={name: value})
    assert param_of(error_of(answer, 400, "INVALID_ARGUMENT")) == name


@pytest.mark.parametrize(
    ("bounds", "code"),
    [
        (Bounds(max_response_bytes=1000), "invalid_value"),
        (Bounds(response_ttl_s=0), "not_allowed"),
    ],
)
def test_what_the_operator_does_not_let_be_stored(
    tiny_model: Path, tmp_path: Path, bounds: Bounds, code: str
) -> None:
    own, config = FakeEngine(), config_of(tiny_model, tmp_path, bounds=bounds)
    body = {"model": MODEL, "contents": [{"parts": [{"text": "x" * 2000}]}]}
    with serving(config, own) as gateway:
        headers = {"x-goog-api-key": gateway.key}
        answer = httpx.post(f"{gateway.url}/v1beta/cachedContents", json=body, headers=headers)
    error = error_of(answer, 400, "INVALID_ARGUMENT")
    assert error["details"][0]["reason"] == code
    assert not own.requests


def test_a_content_of_another_model(http: httpx.Client, engine: FakeEngine) -> None:
    body = {"model": "nobody", "contents": [{"parts": [{"text": "a"}]}]}
    error_of(http.post("/v1beta/cachedContents", json=body), 404, "NOT_FOUND")
