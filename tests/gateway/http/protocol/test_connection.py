"""A connection whose client sends or reads nothing is cut off, while others are served."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config import Bounds
from tests.doubles.engine.fake_engine import FakeEngine, saying
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.gateway.support.raw_http import connected, head, post, read_answer, request

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).encode()


@pytest.fixture(scope="module")
def served(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine
) -> Iterator[Served]:
    config = config_of(
        tiny_model,
        tmp_path_factory.mktemp("data"),
        bounds=Bounds(
            head_deadline_s=0.3, body_deadline_s=0.3, stalled_write_s=0.3, max_head_bytes=8192
        ),
    )
    with serving(config, module_engine) as gateway:
        yield gateway


def is_cut_off(connection: socket.socket) -> bool:
    try:
        return connection.recv(65536) == b""
    except ConnectionResetError:
        return True


def test_a_silent_client(served: Served) -> None:
    with connected(served) as connection:
        assert is_cut_off(connection)


@pytest.mark.parametrize("sent", [b"POST /v1/chat", b"POST /v1 HTTP/1.1\r\nhost: x\r\nx-a: "])
def test_a_slow_head(served: Served, engine: FakeEngine, sent: bytes) -> None:
    with connected(served) as connection:
        connection.sendall(sent)
        answer = read_answer(connection)
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert is_cut_off(connection)
    assert post(served, CHAT, BODY).status == 200


def test_a_slow_second_head(served: Served, engine: FakeEngine) -> None:
    with connected(served) as connection:
        connection.sendall(request(served, CHAT, BODY))
        assert read_answer(connection).status == 200
        connection.sendall(b"POST /v1")
        assert read_answer(connection).status == 408
        assert is_cut_off(connection)


def test_empty_lines_do_not_keep_a_connection(served: Served, engine: FakeEngine) -> None:
    """Ignore empty lines between requests, which do not extend a deadline.

    A client may send an empty line after a body. The bytes after it have the deadline of a head.
    """
    with connected(served) as connection:
        connection.sendall(request(served, CHAT, BODY) + b"\r\n")
        assert read_answer(connection).status == 200
        assert read_answer(connection).status == 408
        assert is_cut_off(connection)


def test_a_slow_body(served: Served, engine: FakeEngine) -> None:
    with connected(served) as connection:
        connection.sendall(head(served, CHAT, f"content-length: {len(BODY)}") + BODY[:-1])
        assert read_answer(connection).status == 408
        assert is_cut_off(connection)
    assert engine.requests == []


def test_a_body_that_is_of_no_use_has_a_deadline_too(served: Served) -> None:
    with connected(served) as connection:
        connection.sendall(head(served, "/nothing", "content-length: 9") + b"a")
        assert read_answer(connection).status == 404
        assert is_cut_off(connection)


@pytest.mark.parametrize("framed", ["content-length: 2", "transfer-encoding: chunked"])
def test_after_a_body_that_nobody_read_the_next_request_is_answered(
    served: Served, framed: str
) -> None:
    body = b"hi" if framed.startswith("content") else b"2\r\nhi\r\n0\r\n\r\n"
    with connected(served) as connection:
        connection.sendall(head(served, "/nothing", framed))
        assert read_answer(connection).status == 404
        connection.sendall(body + head(served, "/healthz", method="GET"))
        assert read_answer(connection).status == 200


@pytest.mark.parametrize(("zeros", "status"), [(0, 200), (15, 200), (18, 400), (5000, 400)])
def test_a_length_of_too_many_digits_reaches_no_route(
    served: Served, engine: FakeEngine, caplog: pytest.LogCaptureFixture, zeros: int, status: int
) -> None:
    length = "0" * zeros + str(len(BODY))
    with connected(served) as connection:
        connection.sendall(head(served, CHAT, f"content-length: {length}") + BODY)
        assert read_answer(connection).status == status
    assert len(engine.requests) == (status == 200)
    assert "broke the gateway" not in caplog.text


def test_a_head_over_the_bound(served: Served, engine: FakeEngine) -> None:
    with connected(served) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nx-a: " + b"a" * 10_000)
        answer = read_answer(connection)
    assert (answer.status, answer.error["code"]) == (431, "head_too_large")


@pytest.mark.parametrize(
    ("target", "fields", "status"),
    [
        ("/healthz", 90, 200),
        ("/healthz", 200, 431),
        ("/healthz?" + "a=&" * 90, 1, 200),
        ("/healthz?" + "a=&" * 200, 1, 414),
        ("/healthz?" + "a" * 4000, 1, 200),
        ("/healthz?" + "a" * 5000, 1, 414),
    ],
)
def test_what_a_head_may_have(served: Served, target: str, fields: int, status: int) -> None:
    with connected(served) as connection:
        connection.sendall(head(served, target, *["a: b"] * fields, method="GET"))
        assert read_answer(connection).status == status


def chunked(served: Served, extension: bytes = b"", trailers: bytes = b"") -> bytes:
    """Return the bytes of a chat request whose body is one chunk."""
    size = f"{len(BODY):x}".encode()
    framed = size + extension + b"\r\n" + BODY + b"\r\n0\r\n" + trailers + b"\r\n"
    return head(served, CHAT, "transfer-encoding: chunked") + framed


@pytest.mark.parametrize(
    ("extension", "trailers", "status"),
    [
        (b"", b"", 200),
        (b";a=" + b"b" * 500, b"", 200),
        (b";a=" + b"b" * 4000, b"", 431),
        (b"", b"a: b\r\n" * 60, 200),
        (b"", b"a: " + b"b" * 300 + b"\r\n", 200),
        (b"", b"a: b\r\n" * 600, 431),
        (b"", b"a: " + b"b" * 600 + b"\r\n", 431),
    ],
)
def test_what_may_stand_around_a_body(
    served: Served, engine: FakeEngine, extension: bytes, trailers: bytes, status: int
) -> None:
    with connected(served) as connection:
        connection.sendall(chunked(served, extension, trailers))
        answer = read_answer(connection)
    assert answer.status == status
    assert status == 200 or answer.error["code"] == "framing_too_large"


def test_any_chunk_is_paid_for(served: Served, engine: FakeEngine) -> None:
    """Serve a client that sends each byte in its own chunk, though slowly."""
    chunks = b"".join(b"1\r\n" + BODY[at : at + 1] + b"\r\n" for at in range(len(BODY)))
    with connected(served) as connection:
        connection.sendall(head(served, CHAT, "transfer-encoding: chunked") + chunks + b"0\r\n\r\n")
        assert read_answer(connection).status == 200


def test_bytes_that_are_no_http(served: Served, engine: FakeEngine) -> None:
    with connected(served) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = read_answer(connection)
    assert (answer.status, answer.error["code"]) == (400, "invalid_http")


@pytest.mark.parametrize(
    ("version", "hosts", "status"),
    [
        ("1.1", ["example.com:8000"], 200),
        ("1.1", ["[::1]:8000"], 200),
        ("1.1", [""], 200),
        ("1.1", [], 400),
        ("1.1", ["a", "a"], 400),
        ("1.1", ["a b"], 400),
        ("1.1", ["a/b"], 400),
        ("1.1", ["a@b"], 400),
        ("1.0", [], 200),
        ("1.0", ["a", "b"], 400),
    ],
)
def test_a_head_names_one_host(served: Served, version: str, hosts: list[str], status: int) -> None:
    lines = [f"GET /healthz HTTP/{version}", *(f"Host: {host}" for host in hosts), "", ""]
    with connected(served) as connection:
        connection.sendall("\r\n".join(lines).encode())
        assert read_answer(connection).status == status


@pytest.mark.parametrize(
    ("version", "status"),
    [(" HTTP/1.1", 200), (" HTTP/1.0", 200), (" HTTP/2.0", 400), (" HTTP/0.9", 400), ("", 400)],
)
def test_a_head_has_a_version_whose_framing_is_known(
    served: Served, version: str, status: int
) -> None:
    with connected(served) as connection:
        connection.sendall(f"GET /healthz{version}\r\nhost: a\r\n\r\n".encode())
        answer = read_answer(connection)
        assert answer.status == status
        if status == 400:
            assert answer.error["code"] == "invalid_http"
            assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("version", "coding", "status"),
    [
        ("1.1", "chunked", 200),
        ("1.1", "Chunked", 200),
        ("1.1", "gzip, chunked", 400),
        ("1.1", "identity, chunked", 400),
        ("1.0", "chunked", 400),
    ],
)
def test_a_body_has_no_transfer_coding_but_chunks(
    served: Served, engine: FakeEngine, version: str, coding: str, status: int
) -> None:
    asked = head(served, CHAT, f"transfer-encoding: {coding}").replace(b"1.1", version.encode(), 1)
    with connected(served) as connection:
        connection.sendall(asked + f"{len(BODY):x}\r\n".encode() + BODY + b"\r\n0\r\n\r\n")
        answer = read_answer(connection)
        assert answer.status == status
        if status == 400:
            assert answer.error["code"] == "invalid_http"


H2C = ("connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAB")


@pytest.mark.parametrize("name", ["Upgrade: h2c", "UPGRADE:h2c"])
def test_an_offer_of_another_protocol_is_passed_over(
    served: Served, engine: FakeEngine, name: str
) -> None:
    """Ignore an offer to upgrade to HTTP/2, as Java's client makes, and read the request's body."""
    offer = head(served, CHAT, H2C[0], name, H2C[2], f"content-length: {len(BODY)}") + BODY
    with connected(served) as connection:
        for _ in range(2):  # the connection stays HTTP/1.1
            connection.sendall(offer)
            assert read_answer(connection).status == 200


def test_an_offer_that_comes_in_pieces(served: Served, engine: FakeEngine) -> None:
    offer = head(served, CHAT, *H2C, f"content-length: {len(BODY)}")
    with connected(served) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for place in range(len(offer)):
            connection.sendall(offer[place : place + 1])
        connection.sendall(BODY)
        assert read_answer(connection).status == 200


def test_a_body_may_say_upgrade(served: Served, engine: FakeEngine) -> None:
    body = BODY[:-1] + b',\r\n"user":"\\r\\nUpgrade: x"\r\n}'
    assert post(served, CHAT, body).status == 200
    assert post(served, CHAT, b"\r\nUpgrade: x").error["code"] == "invalid_json"


def test_a_client_that_does_not_read(served: Served, engine: FakeEngine) -> None:
    """Cut off a client that does not read but stays connected, and cancel its choices."""
    engine.script = saying("x" * 4000)
    many = json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "n": 16,
            "logprobs": True,
            "top_logprobs": 20,
        }
    ).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(10)
        connection.connect(("127.0.0.1", served.port))
        connection.sendall(request(served, CHAT, many))
        assert engine.wait_until(lambda engine: engine.running == 16)
        assert engine.wait_until(lambda engine: engine.cancelled >= 1)
        assert engine.wait_until(lambda engine: engine.running == 0)
    assert served.wait_idle()


def test_a_client_that_reads_is_served_to_the_end(served: Served, engine: FakeEngine) -> None:
    engine.script = saying("x" * 2000)
    streamed = BODY[:-1] + b', "stream": true}'
    with connected(served) as connection:
        connection.sendall(request(served, CHAT, streamed))
        told = b""
        while b"[DONE]" not in told:
            told += connection.recv(65536)
    assert told.count(b'"content":"x"') == 2000
