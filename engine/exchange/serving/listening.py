"""The socket at which an engine answers other engines that ask for blocks."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import zmq

from engine.link import pieces
from engine.link.address import is_tcp
from engine.link.engine_end.binding import bind, make_way
from engine.link.engine_end.waker import Waker
from engine.link.tcp.curve import LinkKey, Socket, only_holders
from engine.link.tcp.strangers import Strangers

UNREAD_FRAMES = 32  # maximum number of unread frames of a connection


@dataclass(frozen=True, slots=True)
class Listening:
    """A bound socket, the waker of the thread that polls it, and other things to close."""

    socket: Socket
    waker: Waker
    address: str
    opened: ExitStack

    @classmethod
    def at(cls, where: str, key: LinkKey | None, window: int) -> Self:
        """Bind at `where`, a path or `tcp://host:port` or `tcp://host:*`. TCP needs a key.

        An asker may have `window` blocks on their way. Raises ValueError, OSError.
        """
        if is_tcp(where) and key is None:
            raise ValueError(f"{where}: over TCP a key is needed")
        with ExitStack() as opened:
            waker = Waker()
            opened.callback(waker.close)
            context: zmq.Context[Socket] = zmq.Context()
            opened.callback(context.destroy, linger=0)
            if key is not None:
                opened.enter_context(only_holders(context, key))
            socket = _open(context, window)
            opened.callback(socket.close, linger=0)
            if key is not None:
                opened.callback(Strangers(socket, where, names_key=False).close)
            address = _bind(socket, where, key, opened)
            return cls(socket, waker, address, opened.pop_all())


def _open(context: zmq.Context[Socket], window: int) -> Socket:
    socket = context.socket(zmq.ROUTER)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.ROUTER_MANDATORY, 1)
    # An asker that never reads could leave and ask again repeatedly, so its window is not a bound.
    socket.set(zmq.SNDHWM, 2 * window + UNREAD_FRAMES)
    socket.set(zmq.RCVHWM, UNREAD_FRAMES)
    socket.set(zmq.MAXMSGSIZE, pieces.MAX_FRAME_BYTES)
    return socket


def _bind(socket: Socket, where: str, key: LinkKey | None, opened: ExitStack) -> str:
    if is_tcp(where):
        bind(socket, where, key, "exchange")
        port = socket.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
        return f"{where.rpartition(':')[0]}:{port}"
    path = Path(where)
    make_way(path)
    bind(socket, f"ipc://{path}", None, "exchange")
    path.chmod(0o600)
    opened.callback(path.unlink, missing_ok=True)
    return where
