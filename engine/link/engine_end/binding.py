"""The binding of the engine's sockets: files that other users cannot open, and TCP with a key."""

from __future__ import annotations

import errno
import os
import socket as posix_socket
import stat
from pathlib import Path

import zmq

from engine.link.tcp.curve import LinkKey, Socket, serve_with


def make_way(path: Path) -> None:
    """Make the socket's directory, and remove the socket of a dead engine."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise FileExistsError(errno.EEXIST, "not a socket", str(path))
    with posix_socket.socket(posix_socket.AF_UNIX, posix_socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise OSError(errno.EADDRINUSE, "another engine serves this socket", str(path))
    path.unlink(missing_ok=True)


def bind(socket: Socket, endpoint: str, key: LinkKey | None, setting: str = "socket") -> None:
    """Bind a socket. Its file is never accessible to other users, not even for a moment.

    Raises OSError, whose message names `setting`, the setting that holds the address.
    """
    if key is not None:
        serve_with(socket, key)
    socket.set(zmq.IPV6, 1)
    previous = os.umask(0o177)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        text = f"{setting} {endpoint}: {zmq.strerror(error.errno or 0)}"
        raise OSError(error.errno, text) from error
    finally:
        os.umask(previous)
