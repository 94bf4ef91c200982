"""The real gateway behaves as clients expect of any web server and of other APIs' servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.errors import EngineDied
from gateway.config import GatewayConfig
from tests.doubles.engine.fake_engine import FakeEngine, failing_at, saying
from tests.doubles.gateway.raw_socket import exchange
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.gateway.conftest import BOUNDS

HERE, THERE = "https://chat.example.com", "https://other.example.com"
ALLOWED = "access-control-allow-origin"
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "secret-5a"}]}
MESSAGES = CHAT | {"max_tokens": 20}


@pytest.fixture(scope="module")
def config(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> GatewayConfig:
    return config_of(
        tiny_model,
        tmp_path_factory.mktemp("web"),
        bounds=BOUNDS,
        cors_origins=f"{HERE},http://localhost:3000",
        access_log="json",
    )


@pytest.fixture(scope="module")
def web_engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def web(config: GatewayConfig, web_engine: FakeEngine) -> Iterator[Served]:
    with serving(config, web_engine) as served:
        yield served


@pytest.fixture
def http(web: Served, web_engine: FakeEngine) -> Iterator[httpx.Client]:
    web_engine.reset()
    web_engine.script = saying("fine")
    with httpx.Client(base_url=web.url, timeout=60) as client:
        yield client


def bearer(web: Served) -> dict[str, str]:
    return {"authorization": f"Bearer {web.key}"}


def test_other_servers_names_of_the_checks(http: httpx.Client, web_engine: FakeEngine) -> None:
    for path in ("/health", "/livez", "/healthz", "/readyz"):
        assert http.get(path).status_code == 200
    welcome, web_engine.welcome = web_engine.welcome, None
    assert [http.get(path).status_code for path in ("/health", "/livez")] == [503, 200]
    web_engine.welcome = welcome


def test_the_version_and_a_page_say_what_this_is(http: httpx.Client) -> None:
    assert http.get("/version").json() == {"version": version("ratoon")}
    page = http.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "<h1>Ratoon</h1>" in page.text
    for outside in ("src=", "<script", "style=", "<link", "http://", "https://"):
        assert outside not in page.text


@pytest.mark.parametrize("path", ["/", "/healthz", "/health", "/version", "/openapi.json"])
def test_head_is_get_without_a_body(http: httpx.Client, path: str) -> None:
    got, asked = http.get(path), http.head(path)
    assert (asked.status_code, asked.content) == (got.status_code, b"")
    for name in ("content-length", "content-type"):
        assert asked.headers[name] == got.headers[name]


def test_head_needs_the_key_that_get_needs(http: httpx.Client, web: Served) -> None:
    assert http.head("/v1/models").status_code == 401
    assert http.head("/v1/models", headers=bearer(web)).status_code == 200
    assert http.head("/v1/models/nothing", headers=bearer(web)).status_code == 404


def test_head_of_what_has_no_get_is_refused_by_its_name(http: httpx.Client) -> None:
    answer = http.head("/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert http.put("/v1/models").headers["allow"] == "GET, HEAD"


def test_after_a_head_the_connection_serves_the_next_request(web: Served) -> None:
    asked = b"HEAD /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    last = b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    answer = exchange(web.port, asked + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.count(b'{"status":"ok"}') == 1


def test_a_slash_at_the_end_changes_nothing(http: httpx.Client, web: Served) -> None:
    assert http.get("/healthz/").status_code == 200
    listed = http.get("/v1/models/", headers=bearer(web))
    assert listed.json()["object"] == "list"
    assert http.get(f"/v1/models/{MODEL}/", headers=bearer(web)).json()["id"] == MODEL
    answer = http.post("/v1/chat/completions/", headers=bearer(web), json=CHAT)
    assert answer.json()["choices"][0]["message"]["content"] == "fine"
    refused = http.post("/v1/messages/", headers=bearer(web), json={})
    assert (refused.status_code, refused.json()["type"]) == (400, "error")


@pytest.mark.parametrize("name", ["api-key", "x-api-key"])
def test_a_key_may_come_as_azures_clients_send_it(
    http: httpx.Client, web: Served, name: str
) -> None:
    assert http.get("/v1/models", headers={name: web.key}).status_code == 200
    assert http.get("/v1/models", headers={name: web.key + "x"}).status_code == 401
    both = {name: web.other_key, **bearer(web)}
    assert http.get("/v1/models", headers=both).status_code == 401
    assert http.get("/admin/tenants", headers={name: web.admin_key}).status_code == 200


@pytest.mark.parametrize("begin", ["/openai/v1", "/openai", f"/openai/deployments/{MODEL}"])
def test_paths_of_groqs_and_azures_clients(http: httpx.Client, web: Served, begin: str) -> None:
    answer = http.post(begin + "/chat/completions?api-version=1", headers=bearer(web), json=CHAT)
    assert answer.json()["choices"][0]["message"]["content"] == "fine"
    assert http.get(begin + "/models", headers=bearer(web)).json()["data"][0]["id"] == MODEL
    assert http.get(begin + "/models").status_code == 401
    assert http.get("/x" + begin + "/models", headers=bearer(web)).status_code == 404
    assert http.get("/openai/admin/tenants", headers=bearer(web)).status_code == 404


@pytest.mark.parametrize("path", ["chat/completions", "completions", "embeddings", "models"])
def test_a_deployment_that_is_no_model_is_not_found(
    http: httpx.Client, web: Served, path: str
) -> None:
    def status(deployment: str, key: str, model: str = MODEL) -> int:
        url = f"/openai/deployments/{deployment}/{path}"
        body = {"model": model, "prompt": "x", "input": "x", "max_tokens": 1}
        if path == "chat/completions":
            body = CHAT | {"model": model}
        method = "GET" if path == "models" else "POST"
        headers = {"authorization": f"Bearer {key}"}
        return http.request(method, url, headers=headers, json=body).status_code

    assert status("other", web.key) == 404
    assert status("other", web.key + "x") == 401, "strangers learn no names"
    assert status(MODEL, web.key) == 200, "the control"
    assert status(MODEL, web.key, "gpt-4") == 200, "as on Azure, the body's name does not count"


def test_azure_has_no_other_routes_below_a_deployment(http: httpx.Client, web: Served) -> None:
    headers, body = bearer(web), {"input": "x", "model": MODEL}
    for path in ("responses", "modules", "tokenize"):
        asked = http.post(f"/openai/deployments/{MODEL}/{path}", headers=headers, json=body)
        assert asked.status_code == 404
    assert http.post("/openai/responses", headers=headers, json=body).status_code == 200


def chunks_of(http: httpx.Client, web: Served, path: str, **more: Any) -> list[dict[str, Any]]:
    asked = CHAT | {"stream": True} | more
    answer = http.post(f"{path}/chat/completions", headers=bearer(web), json=asked)
    events = answer.text.removesuffix("data: [DONE]\n\n").strip().split("\n\n")
    return [json.loads(event.removeprefix("data: ")) for event in events]


class TestUsageInStreams:
    @pytest.mark.parametrize("path", ["/v1", "/openai", f"/openai/deployments/{MODEL}"])
    def test_openais_and_azures_clients_ask_for_usage(
        self, http: httpx.Client, web: Served, path: str
    ) -> None:
        none = chunks_of(http, web, path, stream_options={"include_usage": False})
        assert not any(one.get("usage") or "x_groq" in one for one in none)
        asked = chunks_of(http, web, path, stream_options={"include_usage": True})
        assert asked[-1]["choices"] == []
        assert asked[-1]["usage"]["completion_tokens"] > 0

    def test_openrouters_clients_do_not_ask(self, http: httpx.Client, web: Served) -> None:
        *_, last = chunks_of(http, web, "/api/v1", usage={"include": True})
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] > 0

    @pytest.mark.parametrize("n", [1, 2])
    def test_other_clients_read_it_with_the_last_choice_without_asking(
        self, http: httpx.Client, web: Served, n: int
    ) -> None:
        *chunks, last = chunks_of(http, web, "/v1", n=n)
        assert last["choices"][0]["finish_reason"] == "stop"
        assert last["usage"]["completion_tokens"] > 0
        assert not any("usage" in one for one in chunks)

    @pytest.mark.parametrize("n", [1, 2])
    def test_groqs_clients_read_it_in_the_last_chunk_with_a_choice(
        self, http: httpx.Client, web: Served, n: int
    ) -> None:
        *_, last = chunks = chunks_of(http, web, "/openai/v1", n=n)
        assert last["x_groq"]["id"] == last["id"]
        assert last["x_groq"]["usage"]["completion_tokens"] > 0
        assert "usage" not in last
        assert not any("x_groq" in one for one in chunks[:-1])
        ends = [one["choices"][0]["finish_reason"] for one in chunks]
        assert ends.count("stop") == n
        assert ends[-1] == "stop"
        assert "ratoon" not in last or len(chunks) == 1

    def test_groqs_clients_may_ask_for_openais_chunk_as_well(
        self, http: httpx.Client, web: Served
    ) -> None:
        asked = chunks_of(http, web, "/openai/v1", stream_options={"include_usage": True})
        assert asked[-1]["usage"] == asked[-2]["x_groq"]["usage"]


class TestOpenRoutersPaths:
    def test_chats_are_openais(self, http: httpx.Client, web: Served) -> None:
        answer = http.post("/api/v1/chat/completions", headers=bearer(web), json=CHAT)
        assert answer.json()["choices"][0]["message"]["content"] == "fine"

    def test_every_answer_and_chunk_names_its_provider(
        self, http: httpx.Client, web: Served
    ) -> None:
        """Name a provider in every answer and chunk: pydantic-ai's model for OpenRouter refuses an
        answer without it.
        """
        prompt = {"model": MODEL, "prompt": "Hi"}
        for path, body in (("chat/completions", CHAT), ("completions", prompt)):
            whole = http.post(f"/api/v1/{path}", headers=bearer(web), json=body).json()
            assert whole["provider"] == "ratoon"
            assert "provider" not in http.post(f"/v1/{path}", headers=bearer(web), json=body).json()
        chunks = chunks_of(http, web, "/api/v1")
        assert {one["provider"] for one in chunks} == {"ratoon"}

    def test_the_list_has_the_fields_that_its_sdk_requires(
        self, http: httpx.Client, web: Served
    ) -> None:
        listed = http.get("/api/v1/models", headers=bearer(web)).json()
        assert (listed["total_count"], listed["links"]) == (1, {"next": None})
        [model] = listed["data"]
        assert (model["id"], model["context_length"]) == (
            MODEL,
            model["top_provider"]["context_length"],
        )
        assert {"architecture", "canonical_slug", "pricing", "supported_parameters"} <= set(model)
        assert http.get("/api/v1/models").status_code == 401

    def test_an_errors_code_is_its_status(
        self, http: httpx.Client, web: Served, web_engine: FakeEngine
    ) -> None:
        asked = CHAT | {"temperature": 9}
        refused = http.post("/api/v1/chat/completions", headers=bearer(web), json=asked)
        error = refused.json()["error"]
        assert error["code"] == refused.status_code == 400
        assert error["metadata"] == {"error_type": "invalid_value", "param": "temperature"}
        assert http.get("/api/v1/nowhere").json()["error"]["code"] == 404
        web_engine.pace = failing_at(1, EngineDied("it broke"))
        stream = http.post(
            "/api/v1/chat/completions", headers=bearer(web), json=CHAT | {"stream": True}
        )
        last = json.loads(stream.text.strip().rpartition("data: ")[2])
        assert (last["object"], last["choices"], last["error"]["code"]) == (
            "chat.completion.chunk",
            [],
            503,
        )


class TestRequestIds:
    def test_the_clients_id_is_in_answers_streams_and_refusals(
        self, http: httpx.Client, web: Served
    ) -> None:
        given = {"x-request-id": "client-7"}
        answers = [
            http.post("/v1/chat/completions", headers=bearer(web) | given, json=CHAT),
            http.post(
                "/v1/chat/completions", headers=bearer(web) | given, json=CHAT | {"stream": True}
            ),
            http.post("/v1/chat/completions", headers=given, json=CHAT),
            http.get("/nowhere", headers=given),
        ]
        assert [answer.status_code for answer in answers] == [200, 200, 401, 404]
        assert {answer.headers["x-request-id"] for answer in answers} == {"client-7"}
        assert "client-7" not in answers[0].text, "responses are named by an id that is unique"

    def test_in_anthropics_dialect_too(self, http: httpx.Client) -> None:
        answer = http.post("/v1/messages", headers={"x-request-id": "client-7"}, json=MESSAGES)
        assert answer.headers["request-id"] == answer.json()["request_id"] == "client-7"

    @pytest.mark.parametrize("given", [b"a b", b"\xe4", b"x" * 129])
    def test_one_that_is_long_or_not_visible_is_left_out(
        self, http: httpx.Client, given: bytes
    ) -> None:
        headers = [(b"x-request-id", given)]
        assert len(http.get("/healthz", headers=headers).headers["x-request-id"]) == 32

    def test_a_connection_that_is_refused_says_it_as_well(self, web: Served) -> None:
        told = exchange(web.port, broken_body("x-request-id: client-7"))
        assert told.startswith(b"HTTP/1.1 400")
        assert b"x-request-id: client-7\r\n" in told


def broken_body(*fields: str) -> bytes:
    """Return a complete request head, and a chunk without its size."""
    more = "".join(f"{field}\r\n" for field in fields)
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{more}"
        "transfer-encoding: chunked\r\n\r\nzz\r\n"
    ).encode()


class TestOrigins:
    def test_a_preflight_needs_no_key(self, http: httpx.Client) -> None:
        asked = {
            "origin": HERE,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type,x-stainless-os",
        }
        answer = http.options("/v1/chat/completions", headers=asked)
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers[ALLOWED] == HERE
        allowed = answer.headers["access-control-allow-headers"]
        assert allowed == asked["access-control-request-headers"]
        other = http.options("/v1/chat/completions", headers=asked | {"origin": THERE})
        assert other.status_code == 405
        assert not told_of_cors(other)

    def test_answers_streams_and_refusals_may_be_read(
        self, http: httpx.Client, web: Served
    ) -> None:
        for origin, expected in ((HERE, HERE), (THERE, None), (None, None)):
            headers = {} if origin is None else {"origin": origin}
            known = headers | bearer(web)
            answers = [
                http.post("/v1/chat/completions", headers=known, json=CHAT),
                http.post("/v1/chat/completions", headers=known, json=CHAT | {"stream": True}),
                http.post("/v1/messages", headers=known, json=MESSAGES),
                http.post("/v1/chat/completions", headers=known, json={}),
                http.post("/v1/chat/completions", headers=headers, json=CHAT),
                http.get("/nowhere", headers=headers),
                http.get("/health", headers=headers),
            ]
            statuses = [answer.status_code for answer in answers]
            assert statuses == [200, 200, 200, 400, 401, 404, 200]
            assert {answer.headers.get(ALLOWED) for answer in answers} == {expected}
            assert expected is not None or not any(map(told_of_cors, answers))

    def test_a_refused_connection_may_be_read_too(self, web: Served) -> None:
        allowed = f"{ALLOWED}: {HERE}\r\n".encode()
        assert allowed in exchange(web.port, broken_body(f"origin: {HERE}"))
        assert b"access-control" not in exchange(web.port, broken_body(f"origin: {THERE}"))

    def test_without_a_list_there_is_no_cors(self, served: Served) -> None:
        asked = {"origin": HERE, "access-control-request-method": "POST"}
        answer = httpx.options(f"{served.url}/v1/chat/completions", headers=asked)
        assert answer.status_code == 405
        assert not told_of_cors(answer)
        assert "vary" not in answer.headers


def told_of_cors(answer: httpx.Response) -> list[str]:
    return [name for name in answer.headers if name.startswith("access-control")]


def test_the_operators_own_port_is_for_no_origin(tiny_model: Path, tmp_path: Path) -> None:
    """Send no CORS fields on the operator's port: with two addresses, only the tenants' address has
    CORS.
    """
    import asyncio
    import time

    from gateway.startup.composition import composed
    from gateway.startup.first_start import ensure_first_start

    async def allowed() -> list[bool]:
        await ensure_first_start(tmp_path, clock=time.time)
        config = config_of(tiny_model, tmp_path, cors_origins=HERE, admin_port=1)
        async with composed(config, FakeEngine()) as gateway:
            found = []
            for bind in gateway.binds:
                transport = httpx.ASGITransport(bind.app)
                async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                    answer = await client.get("/healthz", headers={"origin": HERE})
                    found.append(ALLOWED in answer.headers)
            return found

    assert asyncio.run(allowed()) == [True, False]


class TestAccessLog:
    def test_a_line_for_each_request_without_its_content(
        self, tiny_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        engine = FakeEngine()
        engine.script = saying("fine")
        config = config_of(tiny_model, tmp_path, bounds=BOUNDS, access_log="json")
        with serving(config, engine) as web, httpx.Client(base_url=web.url) as http:
            given, chat = bearer(web) | {"x-request-id": "client-7"}, "/v1/chat/completions"
            answers = [
                http.post(chat, headers=given, json=CHAT),
                http.post(chat, headers=bearer(web), json=CHAT | {"stream": True}),
                http.post(chat, headers=bearer(web), json={"model": MODEL}),
                http.get("/v1/models", headers={"x-api-key": "sk-secret-77"}),
                http.get("/secret-path"),
                http.get("/healthz"),
                http.head("/v1/models", headers=bearer(web)),
            ]
            keys = [web.key, web.admin_key]
        said = capfd.readouterr().out
        # Servers of other tests may still write to the log, so the lines are found by their ids.
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        by_id = {one["client_id"] or one["id"]: one for one in lines}
        ours = [by_id.get(answer.headers["x-request-id"]) for answer in answers]
        shown = [
            one and (one["method"], one["route"], one["status"], one["outcome"]) for one in ours
        ]
        assert shown == [
            ("POST", chat, 200, "stop"),
            ("POST", chat, 200, "stop"),
            ("POST", chat, 400, "missing_required_parameter"),
            ("GET", "/v1/models", 401, "invalid_api_key"),
            ("GET", "unknown", 404, "unknown_url"),
            None,
            ("HEAD", "/v1/models", 200, None),
        ]
        first, second, bad, unknown = (one for one in ours[:4] if one)
        assert first["client_id"] == "client-7"
        assert len(first["id"]) == 32
        assert second["client_id"] is None
        assert first["tenant"] == second["tenant"] == bad["tenant"]
        assert first["tenant"].startswith("tn_")
        assert first["key"].startswith("key_")
        assert unknown["tenant"] is unknown["key"] is None
        assert first["prompt_tokens"] > 0
        assert second["cached_tokens"] > first["cached_tokens"] == 0
        assert first["generated_tokens"] == second["generated_tokens"] > 0
        assert 0 <= first["first_token_ms"] <= first["ms"]
        for secret in (*keys, "secret", "fine"):
            assert secret not in said

    def test_it_can_be_left_out(
        self, tiny_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        config = config_of(tiny_model, tmp_path, access_log="off")
        with serving(config, FakeEngine()) as web:
            httpx.get(f"{web.url}/v1/models", headers=bearer(web))
        assert "/v1/models" not in capfd.readouterr().out


class TestGzip:
    """Tests of gzip in answers; test_body.py and test_malformed.py test gzip in requests."""

    def test_a_large_answer_is_compressed_for_who_accepts_it(self, served: Served) -> None:
        url = f"{served.url}/openapi.json"
        plain = httpx.get(url, headers={"accept-encoding": "identity"})
        zipped = httpx.get(url, headers={"accept-encoding": "gzip"})
        assert zipped.json() == plain.json()
        assert zipped.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        assert int(zipped.headers["content-length"]) < int(plain.headers["content-length"]) / 4
        assert "accept-encoding" in zipped.headers["vary"].lower()

    def test_what_has_no_key_is_compressed_once(
        self, served: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        paths = ("/openapi.json", "/usage/page.css", "/admin/ui/vendor/uPlot.js")
        headers = {"accept-encoding": "gzip"}
        before = [httpx.get(served.url + path, headers=headers).content for path in paths]
        monkeypatch.setattr("starlette.middleware.gzip.GZipResponder.apply_compression", None)
        for path, content in zip(paths, before, strict=True):
            again = httpx.get(served.url + path, headers=headers)
            assert (again.content, again.headers["content-encoding"]) == (content, "gzip")
        with_key = headers | {"authorization": f"Bearer {served.admin_key}"}
        large = httpx.get(f"{served.url}/metrics", headers=with_key)
        assert large.status_code == 500, "the control: others are compressed as they are sent"

    def test_a_small_one_and_a_stream_are_not(self, served: Served, engine: FakeEngine) -> None:
        del engine
        headers = {"accept-encoding": "gzip", "authorization": f"Bearer {served.key}"}
        small = httpx.get(f"{served.url}/version", headers=headers)
        assert "content-encoding" not in small.headers
        asked = {"model": "tiny", "prompt": [5] * 4, "n": 8, "max_tokens": 300, "stream": True}
        stream = httpx.post(
            f"{served.url}/v1/completions",
            json=asked,
            headers=headers,
        )
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in stream.headers
        assert len(stream.content) > 2048, "long enough to be worth it"

    def test_head_says_what_get_would(self, served: Served) -> None:
        url, headers = f"{served.url}/openapi.json", {"accept-encoding": "gzip"}
        answer = httpx.head(url, headers=headers)
        assert (answer.status_code, answer.content) == (200, b"")
        assert (
            answer.headers["content-length"]
            == httpx.get(url, headers=headers).headers["content-length"]
        )
