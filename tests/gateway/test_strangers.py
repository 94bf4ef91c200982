"""Unauthenticated clients hold all connections: tenants and the operator are still served."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.config import Bounds
from gateway.page.signing_in import MAX_BYTES
from tests.doubles.engine.fake_engine import FakeEngine, hanging_at
from tests.doubles.gateway.attacks import CHAT
from tests.doubles.gateway.floods import HEALTH, LARGEST, request
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.doubles.waiting import wait_for
from tests.gateway.support.raw_http import Answer, connected, head, read_answer

ROOM = 24
MANY = 3 * ROOM
BODY = json.dumps(
    {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
).encode()
SIGN_IN = "POST /admin/session"
HOLDS = {
    "nothing": b"",
    "half a head": request(HEALTH)[:-1],
    "a connection that was used": request(HEALTH),
    "half a body": request(f"POST {CHAT}", "content-length: 1000") + b"{",
    "half a sign-in": request(
        SIGN_IN, "content-type: application/json", f"content-length: {MAX_BYTES}"
    )
    + b"{",
    "an answer that is not read": request(f"GET {LARGEST}"),
    "wrong keys": request("GET /v1/models", f"x-api-key: sk-{'x' * 43}"),
}


@pytest.fixture(scope="module")
def small(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine
) -> Iterator[Served]:
    """Run a gateway that allows few connections, on one port."""
    bounds = Bounds(max_connections=ROOM)
    data = tmp_path_factory.mktemp("small")
    with serving(config_of(tiny_model, data, bounds=bounds), module_engine) as running:
        yield running


def opened(small: Served, held: ExitStack) -> socket.socket:
    return held.enter_context(connected(small, timeout=30))


def stranger(small: Served, held: ExitStack, sent: bytes) -> socket.socket:
    """Connect without a key, and stay connected as long as the gateway allows."""
    connection = held.enter_context(socket.socket())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", small.port))
    connection.sendall(sent)
    return connection


def asked(connection: socket.socket, served: Served) -> Answer:
    """Send a tenant's chat; return the answer."""
    connection.sendall(head(served, CHAT, f"content-length: {len(BODY)}") + BODY)
    return read_answer(connection)


def made(connection: socket.socket, served: Served) -> Answer:
    """Create a tenant as the operator; return the answer."""
    body = json.dumps({"name": uuid4().hex}).encode()
    length = f"content-length: {len(body)}"
    connection.sendall(head(served, "/admin/tenants", length, key=served.admin_key) + body)
    return read_answer(connection)


@pytest.mark.parametrize("hold", HOLDS)
def test_whatever_they_hold_others_are_served(small: Served, engine: FakeEngine, hold: str) -> None:
    del engine
    with ExitStack() as held:
        tenant, operator = opened(small, held), opened(small, held)
        assert (asked(tenant, small).status, made(operator, small).status) == (200, 201)
        for _ in range(MANY):
            stranger(small, held, HOLDS[hold])
        assert (asked(tenant, small).status, made(operator, small).status) == (200, 201)
        assert asked(opened(small, held), small).status == 200, "one that comes now"
        assert made(opened(small, held), small).status == 201, "the operator, who comes now"


def test_the_room_is_as_small_as_that(small: Served, engine: FakeEngine) -> None:
    """Fill all connections with tenants' requests (positive control): further requests are
    refused.
    """
    engine.pace = hanging_at(1)
    body = BODY[:-1] + b', "stream": true}'
    body = body.replace(b'"max_tokens": 1', b'"max_tokens": 9')
    with ExitStack() as held:
        for number in range(ROOM):
            key = small.key if number % 2 else small.other_key
            connection = opened(small, held)
            connection.sendall(head(small, CHAT, f"content-length: {len(body)}", key=key) + body)
        assert engine.wait_until(lambda one: one.running == ROOM)
        late = read_answer(opened(small, held))
        assert (late.status, late.error["code"]) == (503, "too_many_connections")
    assert engine.wait_until(lambda one: one.running == 0)


def test_a_tenant_s_streams_leave_room_for_others(small: Served, engine: FakeEngine) -> None:
    engine.pace = hanging_at(1)
    body = BODY[:-1] + b', "stream": true}'
    body = body.replace(b'"max_tokens": 1', b'"max_tokens": 9')
    with ExitStack() as held:
        statuses = []
        for _ in range(2 * ROOM):
            connection = opened(small, held)
            connection.sendall(head(small, CHAT, f"content-length: {len(body)}") + body)
            statuses.append(connection.recv(12)[-3:])
        streams = ROOM - ROOM // 8
        assert statuses == [b"200"] * streams + [b"429"] * (len(statuses) - streams)
        assert engine.running == streams
        engine.pace = hanging_at(9)
        other = opened(small, held)
        other.sendall(head(small, CHAT, f"content-length: {len(BODY)}", key=small.other_key) + BODY)
        assert read_answer(other).status == 200
        assert made(opened(small, held), small).status == 201
    wait_for(lambda: engine.running == 0, 30)


def test_bodies_of_a_tenant_that_were_refused_hold_nothing(
    small: Served, engine: FakeEngine
) -> None:
    """Count no memory for refused bodies, which are answered at once though the rest may never
    come.
    """
    del engine
    half = head(small, CHAT, f"content-length: {len(BODY)}") + BODY[:-1]
    with ExitStack() as held:
        for number in range(1, ROOM - ROOM // 8 + 1):
            opened(small, held).sendall(half)
            wait_for(lambda: len(small.streams) == number, 30)  # noqa: B023
        for _ in range(2 * ROOM):
            refused = opened(small, held)
            refused.sendall(half)
            assert read_answer(refused).status == 429
        other = opened(small, held)
        length = f"content-length: {len(BODY)}"
        other.sendall(head(small, CHAT, length, key=small.other_key) + BODY)
        assert read_answer(other).status == 200
        assert made(opened(small, held), small).status == 201
