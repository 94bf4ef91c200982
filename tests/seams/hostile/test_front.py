"""What the deployment's HAProxy, the real one, lets through to a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.doubles.gateway.front import Front, haproxy, running_front
from tests.doubles.gateway.raw_socket import statuses
from tests.seams.support.server import Server

pytestmark = pytest.mark.skipif(haproxy() is None, reason="there is no haproxy here")


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
