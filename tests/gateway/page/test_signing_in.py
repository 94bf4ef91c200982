"""Sign-ins are limited in size and time, so that strangers' unfinished sign-ins block nobody."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from fastapi import Request
from starlette.types import Message

from gateway.config import Bounds
from gateway.errors import Forbidden, RequestTimeout
from gateway.limits.refusal_throttle import RefusalThrottle
from gateway.page.files import PageFiles
from gateway.page.sessions import check_origin
from gateway.page.signing_in import MAX_BYTES, SignInParts
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.attacks import CHAT
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.gateway.support.raw_http import connected, head, read_answer

PATHS = ("/admin/session", "/usage/session")
ROOM = 64 << 10  # bytes for a tenant's bodies, and for the operator's
HELD = 40  # unfinished sign-ins; if each took 64 KiB, like admin bodies, one would fill the room
JSON = {"content-type": "application/json"}


def key_for(served: Served, path: str) -> str:
    return served.admin_key if path.startswith("/admin") else served.key


def sign_in(
    served: Served,
    path: str,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> httpx.Response:
    body = content or json.dumps({"key": key_for(served, path)}).encode()
    all_headers = {**JSON, **(headers or {})}
    return httpx.post(served.url + path, content=body, headers=all_headers, timeout=60)


@pytest.fixture(scope="module")
def narrow(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a gateway with room for one body of a tenant and one of the operator."""
    bounds = Bounds(max_body_bytes=ROOM, max_tenant_body_bytes=ROOM, body_wait_s=0.3)
    data = tmp_path_factory.mktemp("narrow")
    with serving(config_of(tiny_model, data, bounds=bounds), FakeEngine()) as running:
        yield running


def unfinished(served: Served, held: ExitStack, asked: bytes) -> socket.socket:
    connection = held.enter_context(connected(served, timeout=60))
    connection.sendall(asked + b"{")
    return connection


def make_tenant(served: Served) -> int:
    operator = {"authorization": f"Bearer {served.admin_key}"}
    body = {"name": f"tenant-{uuid4().hex}"}
    answer = httpx.post(f"{served.url}/admin/tenants", json=body, headers=operator, timeout=60)
    return answer.status_code


def ask(served: Served) -> int:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    key = {"authorization": f"Bearer {served.key}"}
    return httpx.post(served.url + CHAT, json=chat, headers=key, timeout=60).status_code


class TestHeldOpen:
    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize("size", [64, MAX_BYTES])
    def test_they_keep_nobody_out(self, narrow: Served, path: str, size: int) -> None:
        lines = (f"POST {path} HTTP/1.1", "host: x", "content-type: application/json")
        asked = "\r\n".join([*lines, f"content-length: {size}", "", ""]).encode()
        with ExitStack() as held:
            for _ in range(HELD):
                unfinished(narrow, held, asked)
            assert make_tenant(narrow) == 201
            assert ask(narrow) == 200
            for page in PATHS:
                assert sign_in(narrow, page).status_code == 200

    def test_bodies_with_a_key_do_fill_the_room_of_whose_they_are(self, narrow: Served) -> None:
        """Fill the room with bodies that carry a key (positive control): the room is as small as
        intended.
        """
        with ExitStack() as held:
            body = f"content-length: {ROOM}"
            unfinished(narrow, held, head(narrow, CHAT, body))
            admin = head(narrow, "/admin/tenants", body, key=narrow.admin_key)
            unfinished(narrow, held, admin)
            while ask(narrow) == 200 or make_tenant(narrow) == 201:
                pass  # until both bodies have taken their room
            assert (ask(narrow), make_tenant(narrow)) == (429, 429)
            assert sign_in(narrow, PATHS[0]).status_code == 200

    def test_one_that_does_not_come_is_answered_and_its_connection_closed(
        self, narrow: Served
    ) -> None:
        with ExitStack() as held:
            lines = (f"POST {PATHS[0]} HTTP/1.1", "host: x", "content-type: application/json")
            asked = "\r\n".join([*lines, "content-length: 100", "", ""]).encode()
            connection = unfinished(narrow, held, asked)
            answer = read_answer(connection)
            assert (answer.status, answer.error["code"]) == (408, "request_timeout")
            assert answer.headers["connection"] == "close"
            assert connection.recv(1) == b""

    async def test_the_deadline_is_for_the_whole_of_it(self) -> None:
        """Limit the time of the whole sign-in: pieces that arrive quickly do not extend the
        deadline.
        """
        parts = SignInParts(PageFiles(), RefusalThrottle(lambda: 0.0), deadline_s=0.1)
        scope = {"type": "http", "headers": [(b"content-type", b"application/json")]}

        async def drip() -> Message:
            await asyncio.sleep(0.01)
            return {"type": "http.request", "body": b"", "more_body": True}

        async def at_once() -> Message:
            return {"type": "http.request", "body": b'{"key": "x"}', "more_body": False}

        assert await parts.key(Request(scope, at_once)) == "x"
        with pytest.raises(RequestTimeout):
            await parts.key(Request(scope, drip))


class TestWhatTheyAre:
    @pytest.mark.parametrize("path", PATHS)
    def test_longer_than_a_key_needs_is_too_long(self, served: Served, path: str) -> None:
        blanks = b" " * (MAX_BYTES - 400)
        content = json.dumps({"key": key_for(served, path)}).encode()
        assert sign_in(served, path, content + blanks).status_code == 200
        refused = sign_in(served, path, content + blanks + b" " * 400)
        assert refused.status_code == 413

    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize(
        "kind",
        ["text/plain", "application/x-www-form-urlencoded", "", "text/plain; application/json"],
    )
    def test_no_form_can_send_one(self, served: Served, path: str, kind: str) -> None:
        refused = sign_in(served, path, headers={"content-type": kind})
        assert refused.status_code == 415
        assert refused.json()["error"]["code"] == "unsupported_media_type"
        assert "set-cookie" not in refused.headers
        assert sign_in(
            served, path, headers={"content-type": "Application/JSON; charset=utf-8"}
        ).is_success

    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize(
        "said",
        [
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"sec-fetch-site": ""},
            {"sec-fetch-site": "cross-site", "origin": "http://HOST"},
            {"origin": "http://elsewhere.example"},
            {"origin": "http://HOST.example"},
            {"origin": "null"},
            {"origin": "http://["},
        ],
    )
    def test_no_other_site_can_send_one(
        self, served: Served, path: str, said: dict[str, str]
    ) -> None:
        own = f"127.0.0.1:{served.port}"
        headers = {name: value.replace("HOST", own) for name, value in said.items()}
        refused = sign_in(served, path, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "csrf")
        assert "set-cookie" not in refused.headers

    @pytest.mark.parametrize("path", PATHS)
    def test_the_page_itself_and_what_is_no_browser_can(self, served: Served, path: str) -> None:
        own = f"http://127.0.0.1:{served.port}"
        behind_a_proxy: dict[str, str] = {
            "sec-fetch-site": "same-origin",
            "origin": "https://llm.example",
        }
        for said in (
            dict[str, str](),
            {"sec-fetch-site": "same-origin"},
            {"origin": own},
            behind_a_proxy,
        ):
            assert "set-cookie" in sign_in(served, path, headers=said).headers

    def test_no_origin_is_that_of_no_host(self) -> None:
        scope = {"type": "http", "headers": [(b"origin", b"null")]}
        with pytest.raises(Forbidden):
            check_origin(Request(scope))
        check_origin(Request({"type": "http", "headers": []}))

    @pytest.mark.parametrize("path", PATHS)
    def test_a_key_is_given_once(self, served: Served, path: str) -> None:
        key = key_for(served, path)
        for first, second in (("x", key), (key, "x"), (key, key)):
            content = f'{{"key": "{first}", "key": "{second}"}}'.encode()
            refused = sign_in(served, path, content)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "key")
