"""The engine's end of the link: one ZMQ ROUTER on a Unix socket, used by the owner thread alone.

Knows: sockets, file modes, which peers are gone. Does not know: what a message means
(`core.py`) or how it lies in bytes (`codec.py`).
"""

from __future__ import annotations

import errno
import os
import socket as posix_socket
import stat
from pathlib import Path
from typing import NamedTuple, Protocol

import zmq

from engine.codec import Codec
from engine.messages import FromEngine, ToEngine

MAX_MESSAGES_PER_RECEIVE = 512  # so that a flood cannot keep the engine from computing


class Incoming(NamedTuple):
    """One message and the connection it came on."""

    client: bytes
    message: ToEngine


class Link(Protocol):
    """What the core asks of a link; `tests/doubles/memory_link.py` implements it too."""

    @property
    def dropped_frames(self) -> int:
        """Messages so far that were not what a gateway says."""
        ...

    def receive(self, *, timeout_s: float) -> list[Incoming]:
        """What has arrived; waits up to `timeout_s` for the first message."""
        ...

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Send one message; False when the client is gone for good."""
        ...


class SocketLink:
    """A `Link` over `ipc://`. The socket file is 0600; a directory made for it is 0700."""

    def __init__(self, path: str, *, codec: Codec) -> None:
        self.dropped_frames = 0
        self._path = path
        self._codec = codec
        _make_way(Path(path))
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        # What one gateway can be owed is bounded by what it asked for: never block on it.
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.MAXMSGSIZE, codec.max_frame_bytes)
        bind_private(self._socket, path)

    def receive(self, *, timeout_s: float) -> list[Incoming]:
        """What has arrived, at most 512 messages; undecodable frames are counted and dropped."""
        if timeout_s > 0 and not self._socket.poll(int(timeout_s * 1000)):
            return []
        incoming: list[Incoming] = []
        for _ in range(MAX_MESSAGES_PER_RECEIVE):
            frames = self._next_frames()
            if frames is None:
                break
            self._decode(frames, incoming)
        return incoming

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Send one message; False when the client's connection is gone."""
        try:
            self._socket.send_multipart([client, self._codec.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def close(self) -> None:
        """Close the socket and remove its file."""
        self._socket.close(linger=200)  # what was said last may still leave
        self._context.term()
        Path(self._path).unlink(missing_ok=True)

    def _next_frames(self) -> list[bytes] | None:
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def _decode(self, frames: list[bytes], incoming: list[Incoming]) -> None:
        try:
            client, frame = frames
            incoming.append(Incoming(client, self._codec.decode_to_engine(frame)))
        except ValueError:  # a DecodeError, or not two frames
            self.dropped_frames += 1


def _make_way(path: Path) -> None:
    """Make the directory, and remove a socket that nobody serves any more."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise FileExistsError(errno.EEXIST, "not a socket", str(path))
    with posix_socket.socket(posix_socket.AF_UNIX, posix_socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise OSError(errno.EADDRINUSE, "another engine serves this socket", str(path))
    path.unlink(missing_ok=True)


def bind_private(socket: zmq.Socket[bytes], path: str) -> None:
    """Bind so that the socket file is never open to others, not even for a moment."""
    previous = os.umask(0o177)
    try:
        socket.bind(f"ipc://{path}")
    finally:
        os.umask(previous)
    os.chmod(path, 0o600)
