"""The engine's end of the link: a ZMQ ROUTER socket, used only by the owner thread.

The heartbeat has its own thread and socket (`heartbeat.py`).

Elsewhere: the handling of messages (`inbox.py`), and their encoding (`codec.py`).
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import NamedTuple, Protocol

import zmq

from engine.link.address import address
from engine.link.codec import Codec
from engine.link.engine_end.binding import bind, make_way
from engine.link.engine_end.waker import Waker
from engine.link.heartbeat import Heartbeat
from engine.link.messages import FromEngine, ToEngine
from engine.link.pieces import MAX_FRAME_BYTES
from engine.link.tcp.curve import LinkKey, Socket, only_holders
from engine.link.tcp.strangers import Strangers

# The maximum messages and bytes received in one iteration of the loop, so that a flood of messages
# cannot stop the engine from computing. Decoding and checking 4 MiB takes about 8 ms.
MAX_MESSAGES_PER_RECEIVE = 512
MAX_BYTES_PER_RECEIVE = 4 << 20


class Incoming(NamedTuple):
    """A received message, and the connection it came over."""

    client: bytes
    message: ToEngine


class Link(Protocol):
    """An interface to the link, as the core uses it."""

    @property
    def dropped_frames(self) -> int:
        """The number of dropped frames, which were not valid messages of a gateway."""
        ...

    def receive(self, *, timeout_s: float) -> list[Incoming]:
        """Return the received messages. Wait up to `timeout_s` for the first message."""
        ...

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Send one message. Return False if the client is gone permanently."""
        ...


class SocketLink:
    """A `Link` over a Unix socket or TCP.

    A socket file has mode 0600. If its directory is missing, it is made with mode 0700. Over TCP
    only clients that have `key` are admitted.
    """

    def __init__(self, engine: str, *, codec: Codec, key: LinkKey | None = None) -> None:
        """Bind the link. Raises ValueError for TCP without a key, OSError for a used address."""
        self.dropped_frames = 0
        self._engine, self._address = engine, address(engine)
        if self._address.path is None and key is None:
            raise ValueError(f"{engine}: over TCP a key is needed")
        self._codec = codec
        self._turns = 0
        self._waker: Waker | None = None
        self._strangers: list[Strangers] = []
        if self._address.path is not None:
            make_way(self._address.path)
        context: zmq.Context[Socket] = zmq.Context(io_threads=1)
        with ExitStack() as opened:
            opened.callback(context.destroy, linger=0)
            if key is not None:
                opened.enter_context(only_holders(context, key))
            self._socket = _open(context)
            self._poller = zmq.Poller()
            self._poller.register(self._socket, zmq.POLLIN)
            publisher = context.socket(zmq.PUB)
            publisher.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
            if key is not None:
                self._watch(self._socket, opened)
                self._watch(publisher, opened, names_key=False)
            bind(self._socket, self._address.messages, key)
            bind(publisher, self._address.heartbeat, key)
            for path in self._address.files:
                os.chmod(path, 0o600)
            self._heartbeat = Heartbeat(publisher, lambda: self._turns)
            self._opened = opened.pop_all()

    def wake_by(self, waker: Waker) -> None:
        """Make `receive` return when another thread wakes the owner."""
        self._waker = waker
        self._poller.register(waker.fd, zmq.POLLIN)

    def receive(self, *, timeout_s: float) -> list[Incoming]:
        """Return the received messages, within bounds.

        Count and drop frames that cannot be decoded. After the message that reaches the bound of
        bytes, the remaining messages wait for the next call.
        """
        self._turns += 1
        if timeout_s > 0 and not self._wait(timeout_s):
            return []
        incoming: list[Incoming] = []
        num_bytes = 0
        for _ in range(MAX_MESSAGES_PER_RECEIVE):
            frames = self._next_frames()
            if frames is None:
                break
            self._decode(frames, incoming)
            num_bytes += sum(map(len, frames))
            if num_bytes >= MAX_BYTES_PER_RECEIVE:
                break
        return incoming

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Send one message. Return False if the client's connection is gone."""
        try:
            self._socket.send_multipart([client, self._codec.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def close(self) -> None:
        """Close the socket, end the heartbeat, and remove their files."""
        for watch in self._strangers:
            watch.close()
        self._heartbeat.close()
        self._socket.close(linger=200)  # give the last messages some time to be sent
        self._opened.close()
        for path in self._address.files:
            path.unlink(missing_ok=True)

    def _watch(self, socket: Socket, opened: ExitStack, *, names_key: bool = True) -> None:
        watch = Strangers(socket, self._engine, names_key=names_key)
        opened.callback(watch.close)
        self._strangers.append(watch)

    def _wait(self, timeout_s: float) -> bool:
        """Wait for the first message. Return False if none came, or after a call of the waker."""
        ready = dict(self._poller.poll(int(timeout_s * 1000)))
        if self._waker is not None and self._waker.fd in ready:
            self._waker.clear()
        return self._socket in ready

    def _next_frames(self) -> list[bytes] | None:
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def _decode(self, frames: list[bytes], incoming: list[Incoming]) -> None:
        try:
            client, *pieces = frames
            frame = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            incoming.append(Incoming(client, self._codec.decode_to_engine(frame)))
        except ValueError:
            self.dropped_frames += 1


def _open(context: zmq.Context[Socket]) -> Socket:
    socket = context.socket(zmq.ROUTER)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.ROUTER_MANDATORY, 1)
    # Sending never blocks. The queue needs no limit, because a gateway's requests bound the number
    # of messages waiting for it.
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    return socket
