"""The TCP link: only holders of the key can connect, and nobody else can read the messages."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest
import zmq

from engine.link.codec import Codec
from engine.link.engine_end.socket_link import SocketLink
from engine.link.gateway_end.client import EngineClient
from engine.link.heartbeat import HeartbeatListener, is_alive
from engine.link.messages import Hello, Welcome
from engine.link.tcp.curve import BadLinkKey, LinkKey, read_link_key
from tests.doubles.ports import two_free_ports
from tests.doubles.waiting import until

CODEC = Codec()
WAIT_S = 10.0
NEVER_S = 1.0  # seconds without a welcome; a handshake takes less, as the positive controls show
WELCOME = Welcome(
    engine_id="over-tcp",
    fingerprint=b"f",
    vocab_size=8,
    block_size=16,
    max_model_len=64,
    eos_token_ids=(),
    device="cpu",
    dtype="float32",
)


def new_key() -> LinkKey:
    return LinkKey(zmq.curve_keypair()[1])


@pytest.fixture
def at() -> str:
    return f"tcp://127.0.0.1:{two_free_ports()}"


@contextmanager
def welcoming(at: str, key: LinkKey) -> Iterator[SocketLink]:
    """Run an engine that welcomes every gateway."""
    is_over = threading.Event()
    with closing(SocketLink(at, codec=CODEC, key=key)) as link:

        def run() -> None:
            while not is_over.is_set():
                for client, message in link.receive(timeout_s=0.05):
                    if isinstance(message, Hello):
                        link.send(client, WELCOME)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield link
        finally:
            is_over.set()
            thread.join()


async def is_welcomed(at: str, key: LinkKey | None, within_s: float) -> bool:
    """Return whether a gateway with `key` is welcomed."""
    async with connected(at, key) as client:
        try:
            await until(lambda: client.welcome is not None, within_s)
        except TimeoutError:
            return False
    return True


async def test_who_holds_the_key_is_welcomed(at: str) -> None:
    key = new_key()
    with welcoming(at, key):
        assert await is_welcomed(at, key, WAIT_S)


@pytest.mark.parametrize("other", ["another key", "no key"])
async def test_nobody_else_is_heard(at: str, other: str) -> None:
    key = new_key()
    with welcoming(at, key) as link:
        assert not await is_welcomed(at, new_key() if other == "another key" else None, NEVER_S)
        assert await is_welcomed(at, key, NEVER_S), "control: a second is enough"
        assert link.dropped_frames == 0


async def test_who_knows_only_the_engines_public_key_is_not_let_in(at: str) -> None:
    """Refuse a client that knows only the engine's public key, which would suffice for CURVE
    alone.
    """
    key = new_key()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        with welcoming(at, key):
            for pair, welcomed in ((zmq.curve_keypair(), False), ((key.public, key.secret), True)):
                stranger = context.socket(zmq.DEALER)
                stranger.curve_publickey, stranger.curve_secretkey = pair
                stranger.curve_serverkey = key.public
                stranger.connect(at)
                stranger.send(CODEC.encode(Hello()))
                assert bool(stranger.poll(int(NEVER_S * 1000))) is welcomed
                stranger.close(linger=0)
    finally:
        context.destroy(linger=0)


async def test_a_gateway_trusts_no_engine_that_has_not_the_key(at: str) -> None:
    with welcoming(at, new_key()):
        assert not await is_welcomed(at, new_key(), NEVER_S)


async def test_another_key_is_named_at_both_ends_once_and_the_right_one_ends_that(
    at: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = new_key()
    with welcoming(at, key):
        async with connected(at, key) as right, connected(at, new_key()) as wrong:
            await until(lambda: right.welcome is not None, WAIT_S)
            await until(lambda: wrong.handshake_error is not None, WAIT_S)
            assert "--link-key-file" in str(wrong.handshake_error)
            assert right.handshake_error is None, "control: with the key there is nothing to say"
    assert sorted(record.name for record in caplog.records) == [
        "engine.link.gateway_end.client",
        "engine.link.tcp.strangers",
    ]
    assert all("--link-key-file" in record.getMessage() for record in caplog.records)


def test_whoever_knocks_all_the_time_holds_up_no_heartbeat(at: str) -> None:
    """Send heartbeats while the step loop reads nothing and a client connects again and again.

    ZMQ queues 2,000 unread messages.
    """
    key, context = new_key(), zmq.Context[zmq.Socket[bytes]]()
    with closing(SocketLink(at, codec=CODEC, key=key)):
        for _ in range(2100):
            knock(int(at.rpartition(":")[2]))
        with closing(HeartbeatListener(context, at, key)) as listener:
            listener.look(WAIT_S)
            assert listener.missed == 0
    context.destroy(linger=0)


def knock(port: int) -> None:
    """Start a CURVE handshake with a bad first message; return once the server has closed the
    connection.
    """
    greeting = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00CURVE" + bytes(15) + bytes(32)
    hello = b"\x04\xc8\x05HELLO\x01\x00" + bytes(72) + b"k" * 32 + bytes(8) + b"x" * 80
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as stranger:
        stranger.sendall(greeting)
        stranger.recv(64, socket.MSG_WAITALL)
        stranger.sendall(hello)
        # until the server closes the connection, perhaps after more bytes of its greeting
        while stranger.recv(64):
            pass


async def test_an_engine_that_is_away_is_no_failed_handshake(at: str) -> None:
    async with connected(at, new_key()) as client:
        with welcoming(at, new_key()):
            await until(lambda: client.handshake_error is not None, WAIT_S)
        await until(lambda: client.handshake_error is None, WAIT_S)


async def test_what_is_sent_cannot_be_read_on_the_way(at: str) -> None:
    key, wire = new_key(), bytearray()
    through = two_free_ports()
    with welcoming(at, key):
        async with relayed(through, int(at.rpartition(":")[2]), wire):
            assert await is_welcomed(f"tcp://127.0.0.1:{through}", key, WAIT_S)
    assert b"CURVE" in wire, "control: the relay sees the bytes"
    assert WELCOME.engine_id.encode() not in wire
    assert WELCOME.engine_id.encode() in CODEC.encode(WELCOME), "control: it is sent as it is"


async def test_a_machine_that_is_gone_without_a_word_is_noticed(at: str) -> None:
    key, through = new_key(), two_free_ports()
    is_open = asyncio.Event()
    is_open.set()
    async with (
        two_ports_relayed(through, int(at.rpartition(":")[2]), is_open),
        connected(f"tcp://127.0.0.1:{through}", key) as client,
    ):
        with welcoming(at, key):
            await until(lambda: client.welcome is not None, WAIT_S)
            await asyncio.sleep(NEVER_S)
            assert not client.is_stalled, "control: its heartbeats come"
            is_open.clear()
            await until(lambda: client.is_stalled, WAIT_S)
            is_open.set()
            await until(lambda: not client.is_stalled, WAIT_S)


@asynccontextmanager
async def connected(at: str, key: LinkKey | None) -> AsyncIterator[EngineClient]:
    client = EngineClient(at, key=key)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def two_ports_relayed(port: int, target: int, is_open: asyncio.Event) -> AsyncIterator[None]:
    """Relay the ports of messages and of heartbeats while `is_open` is set."""
    async with (
        relayed(port, target, bytearray(), is_open),
        relayed(port + 1, target + 1, bytearray(), is_open),
    ):
        yield


@asynccontextmanager
async def relayed(
    port: int, target: int, wire: bytearray, is_open: asyncio.Event | None = None
) -> AsyncIterator[None]:
    """Relay bytes between `port` and `target`, and append them to `wire`.

    While `is_open` is not set, nothing is relayed.
    """
    under_way: set[asyncio.Task[None]] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                wire.extend(data)
                if is_open is not None:
                    await is_open.wait()
                writer.write(data)
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target)
        under_way.add(asyncio.create_task(pass_on(reader, back)))
        under_way.add(asyncio.create_task(pass_on(there, writer)))

    async with await asyncio.start_server(accept, "127.0.0.1", port):
        yield
    await asyncio.wait(under_way)


def test_its_heartbeat_is_heard_with_the_key_alone(at: str) -> None:
    key = new_key()
    with welcoming(at, key):
        assert is_alive(at, WAIT_S, key)
        assert not is_alive(at, NEVER_S, new_key())


def test_over_tcp_a_key_is_needed(at: str) -> None:
    with pytest.raises(ValueError, match="over TCP a key is needed"):
        SocketLink(at, codec=CODEC)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        at = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"socket {at}: Address already in use"):
            SocketLink(at, codec=CODEC, key=new_key())


def test_a_key_is_read_from_its_file(tmp_path: Path) -> None:
    key, path = new_key(), tmp_path / "link.key"
    path.write_bytes(key.secret + b"\n")
    path.chmod(0o600)
    assert read_link_key(path) == key
    assert key.secret.decode() not in repr(key)


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (None, 0o600, "cannot be read: No such file"),
        (b"no key", 0o600, "holds no key"),
        (b"", 0o600, "holds no key"),
        (b"x" * 40, 0o622, "can be written by others"),
    ],
)
def test_a_file_that_holds_no_key_is_refused(
    tmp_path: Path, content: bytes | None, mode: int, why: str
) -> None:
    path = tmp_path / "link.key"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with pytest.raises(BadLinkKey, match=why):
        read_link_key(path)
