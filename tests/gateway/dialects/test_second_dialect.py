"""A dialect that only this test defines works beside OpenAI's, in the real gateway over a socket.

Errors at its paths are in its form. Positive control: the same errors at OpenAI's paths.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from engine.errors import EngineDied
from engine.link.messages import Generate
from gateway.errors import GatewayError
from gateway.http.error_dialect import Dialects
from gateway.http.protocol.framing import MAX_REQUEST_LINE, path_in
from gateway.startup.composition import DIALECTS
from tests.doubles.engine.fake_engine import EOS, FakeEngine, failing_at, hanging_at, saying
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.doubles.lines_dialect import OVERLOADED, Lines
from tests.gateway.conftest import BOUNDS
from tests.gateway.support.raw_http import Answer, connected, head, read_answer

BOTH = (*DIALECTS, Lines())
DIED = EngineDied("it died")


@pytest.fixture(scope="module")
def served(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine
) -> Iterator[Served]:
    config = config_of(tiny_model, tmp_path_factory.mktemp("data"), bounds=BOUNDS)
    with serving(config, module_engine, BOTH) as gateway:
        yield gateway


@pytest.fixture
def http(served: Served, engine: FakeEngine) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {served.key}"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=60) as client:
        yield client


def lines(http: httpx.Client, **more: Any) -> httpx.Response:
    return http.post("/lines/generate", json={"prompt": "hi", **more})


def chat(http: httpx.Client, **more: Any) -> httpx.Response:
    messages = [{"role": "user", "content": "hi"}]
    return http.post("/v1/chat/completions", json={"model": MODEL, "messages": messages, **more})


def is_lines(answer: httpx.Response, status: int, code: str) -> bool:
    """Return whether an answer is this error in the second dialect, with only its header fields."""
    assert "x-request-id" not in answer.headers
    assert len(answer.headers["lines-id"]) == 32
    shown = answer.status_code, answer.text, answer.headers["lines-code"]
    return shown == (status, f"wrong {code}\n", code)


def is_openai(answer: httpx.Response, status: int, code: str) -> bool:
    """Return whether an answer is this error in OpenAI's dialect, with only its header fields."""
    assert "lines-id" not in answer.headers
    assert {"x-request-id", "openai-processing-ms"} <= answer.headers.keys()
    return (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_an_answer_says_which_stop_ended_it(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = saying("one two three")
    assert lines(http, stops=["zz", " th"]).json() == {
        "said": "one two",
        "stopped_by": " th",
        "tokens": 10,
    }
    assert lines(http).json()["stopped_by"] == EOS
    assert lines(http, max_tokens=3).json()["stopped_by"] is None


def test_a_stream_is_of_its_frames(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script, engine.per_step = saying("abcd"), 2
    answer = lines(http, stream=True)
    assert answer.text == f"said ab\nsaid cd\nstopped by {EOS}\ntokens 5\nbye\n"
    assert chat(http, stream=True).text.endswith("data: [DONE]\n\n"), "the control"


def test_errors_before_and_in_routes(http: httpx.Client, served: Served) -> None:
    nobody = {"authorization": "Bearer nobody"}
    big = b"x" * (BOUNDS.max_body_bytes + 1)
    zipped = {"content-encoding": "br"}
    for path, speaks in (("/lines/generate", is_lines), ("/v1/completions", is_openai)):
        unknown = http.post(path, json={}, headers=nobody)
        assert speaks(unknown, 401, "invalid_api_key")
        assert unknown.headers["www-authenticate"] == "Bearer"
        assert speaks(http.post(f"{path}/nowhere", json={}), 404, "unknown_url")
        wrong = http.get(path)
        assert speaks(wrong, 405, "method_not_allowed")
        assert wrong.headers["allow"] == "POST"
        assert speaks(http.post(path, content=big), 413, "request_too_large")
        assert speaks(http.post(path, content=b"x", headers=zipped), 415, "unsupported_encoding")
        assert speaks(http.post(path, content=b"{"), 400, "invalid_json")
    assert is_openai(http.get("/linesmen"), 404, "unknown_url"), "no path below its prefix"
    # Last, since this error closes the connection.
    assert is_lines(http.get("/lines/broken"), 500, "internal_error")


def test_an_engine_that_is_away_or_dies(http: httpx.Client, engine: FakeEngine) -> None:
    engine.pace = failing_at(0, DIED)
    answer = lines(http)
    assert is_lines(answer, OVERLOADED, DIED.code)
    assert answer.headers["retry-after"]
    assert is_openai(chat(http), 503, DIED.code)
    engine.script, engine.pace = saying("abcd"), failing_at(2, DIED)
    assert lines(http, stream=True).text == f"said a\nsaid b\nwrong {DIED.code}\n"


def test_limits(http: httpx.Client, served: Served, engine: FakeEngine) -> None:
    operator = {"authorization": f"Bearer {served.admin_key}"}
    tenant = {"name": "slow", "limits": {"requests_per_minute": 1}}
    made = http.post("/admin/tenants", json=tenant, headers=operator).json()
    key = http.post(f"/admin/tenants/{made['id']}/keys", json={}, headers=operator).json()["key"]
    http.headers["authorization"] = f"Bearer {key}"
    assert lines(http).headers["lines-left"] == "0"
    assert is_lines(lines(http), 429, "rate_limit_exceeded")
    refused = chat(http)
    assert is_openai(refused, 429, "rate_limit_exceeded")
    assert refused.headers["x-ratelimit-limit-requests"] == "1"


def sent(served: Served, data: bytes) -> Answer:
    with connected(served) as connection:
        connection.sendall(data)
        return read_answer(connection)


def test_a_connection_refuses_a_body_in_its_path_s_dialect(served: Served) -> None:
    """Refuse two bodies in the dialect of their path: one after its head was read, one whose head
    is too large.
    """
    chunked, unreadable = "transfer-encoding: chunked", b"zz\r\n"
    line = sent(served, head(served, "/lines/generate", chunked) + unreadable)
    assert (line.status, line.body) == (400, b"wrong invalid_http\n")
    assert (line.headers["lines-code"], line.headers["content-type"]) == (
        "invalid_http",
        "text/plain",
    )
    control = sent(served, head(served, "/v1/completions", chunked) + unreadable)
    assert (control.status, control.error["code"]) == (400, "invalid_http")
    for fields, query, status, code in (
        ((f"x: {'y' * BOUNDS.max_head_bytes}",), "", 431, "head_too_large"),
        ((), f"?x={'y' * MAX_REQUEST_LINE}", 414, "uri_too_long"),
        ((), f"/{'y' * MAX_REQUEST_LINE}", 414, "uri_too_long"),
    ):
        line = sent(served, head(served, f"/lines/generate{query}", *fields))
        assert (line.status, line.body) == (status, f"wrong {code}\n".encode())
        control = sent(served, head(served, f"/v1/completions{query}", *fields))
        assert (control.status, control.error["code"]) == (status, code)


@pytest.mark.parametrize(
    ("received", "path"),
    [
        (
            b"POST /v1/models/m%3AgenerateContent?x=1 HTTP/1.1\r\nhost: /v1",
            "/v1/models/m:generateContent",
        ),
        (b"POST /v1beta/mod", "/v1beta/mod"),
        (b"POST ", ""),
        (b"POST", ""),
        (b"", ""),
    ],
)
def test_the_path_in_a_head_that_has_not_come_whole(received: bytes, path: str) -> None:
    assert path_in(received) == path


def test_the_description_has_the_errors_of_each_dialect(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()

    def error_of(path: str) -> str:
        [operation] = described["paths"][path].values()
        return str(operation["responses"]["default"]["content"]["application/json"]["schema"])

    assert "LinesError" in error_of("/lines/generate")
    assert "ErrorReply" in error_of("/v1/completions")


def told(event: threading.Event) -> Any:
    """Send two tokens and set `event`, then send nothing until the request is cancelled."""
    hang = hanging_at(2)

    async def pace(request: Generate, at: int) -> None:
        if at >= 2:
            event.set()
        await hang(request, at)

    return pace


@pytest.mark.parametrize("stream", [False, True])
def test_shutdown_is_told_in_each_dialect(tiny_model: Path, tmp_path: Path, stream: bool) -> None:
    engine, hangs = FakeEngine(), threading.Event()
    engine.script, engine.pace = saying("abcd"), told(hangs)
    with (
        ThreadPoolExecutor(2) as pool,
        serving(config_of(tiny_model, tmp_path, grace_s=0.3), engine, BOTH) as served,
        httpx.Client(
            base_url=served.url, headers={"authorization": f"Bearer {served.key}"}, timeout=60
        ) as http,
    ):
        line = pool.submit(lines, http, stream=stream)
        other = pool.submit(chat, http, stream=stream)
        assert engine.wait_until(lambda engine: engine.running == 2)
        assert hangs.wait(10)
        served.server.should_exit = True
        answer, control = line.result(20), other.result(20)
    if stream:
        assert answer.text.splitlines()[-1] == "wrong shutting_down"
        last = json.loads(control.text.strip().rpartition("data: ")[2])
        assert last["error"]["code"] == "shutting_down"
    else:
        assert is_lines(answer, OVERLOADED, "shutting_down")
        assert is_openai(control, 503, "shutting_down")


class Inner(Lines):
    """A dialect with a path below another dialect's, like `/v1/messages` below `/v1`."""

    prefixes: ClassVar[tuple[str, ...]] = ("/lines/inner",)
    suffixes: ClassVar[tuple[str, ...]] = ()
    elsewhere: ClassVar[Mapping[str, str]] = {}
    client_header: ClassVar[bytes] = b""


def test_the_longest_prefix_decides() -> None:
    default = DIALECTS[0]
    outer, inner = Lines(), Inner()
    for others in ((outer, inner), (inner, outer)):
        dialects = Dialects(default, *others)
        assert dialects.of("/lines/inner/x") is dialects.of("/lines/inner") is inner
        assert dialects.of("/lines/innermost") is dialects.of("/lines") is outer
        assert dialects.of("/v1/chat/completions") is dialects.of("/") is default


def test_openai_s_errors_are_byte_for_byte_what_they_were() -> None:
    default = DIALECTS[0]
    reply = default.error_reply(GatewayError("wrong", param="x"), "id")
    said = b'"message":"wrong","type":"server_error","param":"x","code":"internal_error"'
    body = b"{" + said + b',"object":"error","error":{' + said + b"}}"
    assert (reply.status, reply.headers, reply.body) == (500, {}, body)
    assert default.error_event(GatewayError("wrong", param="x"), "id") == b"data: " + body + b"\n\n"
