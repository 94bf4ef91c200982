"""A check that Ray's head node answers at an address. Ray itself would silently retry for ever.

address             outcome
----------------------------------------------------------------------------------------
nothing listens     refused at once
another server      refused if it does not answer in HTTP/2, as the head does, within ANSWER_S
http://, ray://     refused: the addresses of Ray's dashboard, and of Ray's client, whose actors
                    end with the process that made them
"""

import os
import socket
from contextlib import suppress

from cli.errors import CliError

ANSWER_S = 5.0
MAX_PORT = 65_535
_NO_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # an empty SETTINGS frame (RFC 9113, 6.5)
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _NO_SETTINGS
_SETTINGS = 4  # type of a SETTINGS frame, the frame's fourth byte


class NoRay(CliError):
    """A missing installation of Ray, or a Ray head that does not answer."""


def check_is_head(address: str, answer_s: float = ANSWER_S) -> None:
    """Raise NoRay unless HOST:PORT is a Ray head. Ray itself checks others, such as `auto`."""
    if "://" in address:
        raise NoRay(f"Ray at {address}: give HOST:PORT of its head (6379), or auto")
    connection = _connected(address, answer_s)
    if connection is None:
        return
    with connection:
        if not os.environ.get("RAY_USE_TLS") and not _speaks(connection):
            raise NoRay(f"Ray at {address}: what listens there is no head of Ray (port 6379)")


def is_there(address: str) -> bool:
    """Return whether any server listens at HOST:PORT."""
    try:
        connection = _connected(address, ANSWER_S)
    except NoRay:
        return False
    if connection is not None:
        connection.close()
    return True


def _connected(address: str, answer_s: float) -> socket.socket | None:
    """Connect to HOST:PORT, or return None for other forms. Raises NoRay if no server listens."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit() or int(port) > MAX_PORT:
        return None
    try:
        return socket.create_connection((host.strip("[]"), int(port)), answer_s)
    except OSError as error:
        raise NoRay(f"Ray at {address}: {error.strerror or error}") from error


def _speaks(connection: socket.socket) -> bool:
    """Return whether the server speaks HTTP/2, whose answers begin with a SETTINGS frame."""
    answer = b""
    with suppress(OSError):
        connection.sendall(_HELLO)
        while len(answer) <= _SETTINGS and (more := connection.recv(64)):
            answer += more
    return len(answer) > _SETTINGS and answer[3] == _SETTINGS
