"""A request stops using the engine once its client has disconnected in any way."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import pytest

from tests.doubles.engine.fake_engine import FakeEngine, hanging_at, saying
from tests.doubles.gateway.served import MODEL, Served
from tests.gateway.support.raw_http import connected, head, post, read_answer, request, reset

CHAT = "/v1/chat/completions"


def half_close(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


WAYS = {"close": socket.socket.close, "reset": reset, "half close": half_close}


def body(*, stream: bool, n: int = 1) -> bytes:
    return json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hi"}],
            "stream": stream,
            "n": n,
            "max_tokens": 4000,
        }
    ).encode()


def nothing_left(served: Served, engine: FakeEngine) -> bool:
    return engine.wait_until(lambda engine: engine.running == 0) and served.wait_idle()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_before_the_first_byte(
    served: Served, engine: FakeEngine, stream: bool, way: Callable[[socket.socket], None]
) -> None:
    engine.pace = hanging_at(0)
    with connected(served) as connection:
        connection.sendall(request(served, CHAT, body(stream=stream, n=3)))
        assert engine.wait_until(lambda engine: engine.running == 3)
        way(connection)
        assert engine.wait_until(lambda engine: engine.cancelled == 3)
    assert nothing_left(served, engine)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_in_the_middle_of_a_stream(
    served: Served, engine: FakeEngine, way: Callable[[socket.socket], None]
) -> None:
    engine.pace = hanging_at(5)
    with connected(served) as connection:
        connection.sendall(request(served, CHAT, body(stream=True)))
        assert b"data: " in connection.recv(65536)
        way(connection)
        assert engine.wait_until(lambda engine: engine.cancelled == 1)
    assert nothing_left(served, engine)


def test_a_stream_that_is_read_to_its_end_cancels_nothing(
    served: Served, engine: FakeEngine
) -> None:
    with connected(served) as connection:
        connection.sendall(request(served, CHAT, body(stream=True)))
        told = b""
        while b"[DONE]" not in told:
            told += connection.recv(65536)
    assert engine.wait_until(lambda engine: engine.finished == 1)
    assert engine.cancelled == 0


def test_fifty_resets_do_not_starve_the_others(served: Served, engine: FakeEngine) -> None:
    """Serve other clients while fifty disconnect, even if the engine's answers never wait."""

    async def never_waits(_: object, __: int) -> None:
        return

    engine.script = saying("x" * 1500)
    engine.pace = never_waits
    for _ in range(50):
        with connected(served) as connection:
            connection.sendall(request(served, CHAT, body(stream=True)))
            assert connection.recv(1)
            reset(connection)
    assert nothing_left(served, engine)
    engine.script = saying("still here")
    assert b"still here" in post(served, CHAT, body(stream=False)).body


def test_a_body_that_never_ends_is_dropped_with_its_client(
    served: Served, engine: FakeEngine
) -> None:
    with connected(served) as connection:
        connection.sendall(head(served, CHAT, "content-length: 100") + b"{")
        reset(connection)
    assert post(served, CHAT, body(stream=False)).status == 200
    assert len(engine.requests) == 1


def test_the_connection_is_kept_for_the_next_request(served: Served, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    with connected(served) as connection:
        for _ in range(3):
            connection.sendall(request(served, CHAT, body(stream=False)))
            assert read_answer(connection).status == 200
        connection.sendall(request(served, CHAT, b"{"))
        assert read_answer(connection).status == 400
        connection.sendall(request(served, CHAT, body(stream=False)))
        assert read_answer(connection).status == 200
