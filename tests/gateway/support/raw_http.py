"""HTTP written by hand, for requests that no client library sends."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.doubles.gateway.served import Served


@dataclass(frozen=True)
class Answer:
    """An HTTP response: status, lower-case header fields and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """Return the error in OpenAI's form; check that it has exactly four fields."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


@contextmanager
def connected(served: Served, timeout: float = 10.0) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", served.port), timeout) as connection:
        yield connection


def head(
    served: Served, path: str, *extra: str, method: str = "POST", key: str | None = None
) -> bytes:
    """Write a request's head with the first tenant's key, up to the empty line."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: x",
        f"authorization: Bearer {key or served.key}",
        *extra,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def request(served: Served, path: str, body: bytes) -> bytes:
    """Write a whole request."""
    return head(served, path, f"content-length: {len(body)}") + body


def post(served: Served, path: str, body: bytes) -> Answer:
    """Send `body` and read the answer."""
    with connected(served) as connection:
        connection.sendall(request(served, path, body))
        return read_answer(connection)


def read_answer(connection: socket.socket) -> Answer:
    """Read one answer with a content-length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(connection)
    raw_head, body = data.split(b"\r\n\r\n", 1)
    status, *lines = raw_head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    while len(body) < int(headers["content-length"]):
        body += _some(connection)
    return Answer(int(status.split()[1]), headers, body)


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("closed before the answer")
    return data


def reset(connection: socket.socket) -> None:
    """Close the connection with RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
