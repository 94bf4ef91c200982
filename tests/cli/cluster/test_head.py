"""An address that does not belong to a Ray head is refused before Ray itself connects."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest

from cli.cluster.head import NoRay, check_is_head, is_there
from cli.cluster.placing import ray_at
from tests.doubles.fake_ray import FakeRay

SETTINGS = bytes((0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0))
OTHERS = {
    "a dashboard": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a redis": b"-ERR unknown command 'PRI'\r\n",
    "one that is silent": b"",
}


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Listen on a port, answer each first message with `answer`, and yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=_answer, args=(server, answer), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def _answer(server: socket.socket, answer: bytes) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection, suppress(OSError):  # the client may close before the whole answer
            connection.recv(64)
            for byte in answer:
                connection.sendall(bytes((byte,)))
            if not answer:
                connection.recv(64)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


def test_one_that_nobody_listens_at_is_refused(ray: FakeRay) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(NoRay, match=f"^Ray at {address}: Connection refused"), ray_at(address):
            pass
        assert not is_there(address)
    assert ray.connected_to == []


@pytest.mark.parametrize("answer", OTHERS.values(), ids=OTHERS)
def test_who_listens_and_is_no_head_is_refused(answer: bytes) -> None:
    """Refuse an address whose listener is no Ray head, for which Ray would wait for ever.

    The dashboard's port 8265 is easily mistaken for the head's 6379.
    """
    with answering(answer) as address:
        said = f"^Ray at {address}: what listens there is no head"
        with pytest.raises(NoRay, match=said):
            check_is_head(address, 0.2)
        assert is_there(address)


@pytest.mark.parametrize("address", ["http://h:8265", "ray://h:10001"])
def test_other_doors_of_ray_are_refused(ray: FakeRay, address: str) -> None:
    with pytest.raises(NoRay, match=f"^Ray at {address}: give HOST:PORT"), ray_at(address):
        pass
    assert ray.connected_to == []


def test_a_head_is_connected_to_and_so_is_what_ray_reads_itself(ray: FakeRay) -> None:
    with answering(SETTINGS) as address:
        for one in (address, "auto"):
            with ray_at(one):
                pass
    assert ray.connected_to == [address, "auto"]
