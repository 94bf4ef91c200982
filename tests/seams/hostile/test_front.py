"""The deployment's real HAProxy keeps clients from the operator's paths, and silent connections
from shutting out others.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.doubles.gateway.front import Front, haproxy, running_front
from tests.doubles.gateway.raw_socket import statuses
from tests.doubles.waiting import wait_for
from tests.seams.support.server import Server, running_server

pytestmark = pytest.mark.skipif(haproxy() is None, reason="there is no haproxy here")

# limits of connections, and the number of silent connections
OF_GATEWAY, OF_FRONT, SILENT = 40, 80, 120
LONG = 4000  # length in tokens
SAID = [{"role": "user", "content": "Tell me all."}]
CHAT = json.dumps({"model": "handbook", "messages": SAID, "max_tokens": LONG, "ignore_eos": True})


@pytest.fixture(scope="module")
def front(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with running_front(tmp_path_factory.mktemp("front"), port_of(server)) as running:
        yield running


def port_of(server: Server) -> int:
    return urlsplit(server.url).port or 0


def asked(path: str, key: str) -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\nconnection: close\r\n\r\n"
    ).encode()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/metrics", 404),
        ("/metrics?a=%6d", 404),
        ("http://x/metrics", 404),
        ("/%6detrics", 400),
        ("/%6Detrics", 400),
        ("/metric%73", 400),
        ("http://x/%6detrics", 400),
        ("/%61dmin/tenants", 400),
        ("/metrics%zz", 404),
        ("/admin/tenants/%7e", 400),
        ("/admin/tenants/a%20b", 404),
        ("/admin/tenants", 200),
        ("/admin/usage?tenant=%61", 200),
    ],
)
def test_paths_on_the_operators_port(front: Front, server: Server, path: str, status: int) -> None:
    assert statuses(front.operator_port, asked(path, server.admin_key)) == [status]


@pytest.mark.parametrize("path", ["/metrics", "/%6detrics", "/%61dmin/tenants"])
def test_a_gateway_itself_answers_all_of_them(server: Server, path: str) -> None:
    assert statuses(port_of(server), asked(path, server.admin_key)) == [200]


@pytest.mark.parametrize(("where", "status"), [("head", 200), ("trailer", 401)])
def test_a_key_in_a_trailer_does_not_pass(
    front: Front, server: Server, where: str, status: int
) -> None:
    field = f"x-api-key: {server.demo_key}\r\n"
    in_head, in_trailer = (field, "") if where == "head" else ("", field)
    sent = (
        f"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{in_head}"
        f"transfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n{in_trailer}\r\n"
    )
    assert statuses(front.port, sent.encode()) == [status]


def test_a_client_that_leaves_before_its_answer_is_not_answered_on(
    front: Front, server: Server
) -> None:
    key = server.new_tenant()
    with socket.create_connection(("127.0.0.1", front.port)) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n"
        rest = f"content-type: application/json\r\ncontent-length: {len(CHAT)}\r\n\r\n{CHAT}"
        client.sendall((head + rest).encode())
        wait_for(lambda: server.pool()["leased"] > 0, 30)
    wait_for(lambda: generated(server, key) > 0, 30)
    assert generated(server, key) < LONG


def generated(server: Server, key: str) -> int:
    """Return the number of generated tokens charged to this key's tenant."""
    with server.client(key) as client:
        days = client.get("/v1/usage").json()["usage"]
    return sum(day["generated_tokens"] for day in days)


def test_silent_connections_keep_neither_tenants_nor_the_operator_out(tmp_path: Path) -> None:
    settings = {"RATOON_MAX_CONNECTIONS": str(OF_GATEWAY)}
    with ExitStack() as stack:
        server = stack.enter_context(running_server(tmp_path / "data", settings))
        front = stack.enter_context(running_front(tmp_path, port_of(server), OF_FRONT))
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", front.port), 30))
            for _ in range(SILENT)
        ]
        assert statuses(front.port, asked("/v1/models", server.demo_key)) == [200]
        admin = asked("/admin/tenants", server.admin_key)
        assert statuses(front.operator_port, admin) == [200]
        assert silent[0].recv(9) in (b"HTTP/1.1 ", b""), "the oldest has made room"
