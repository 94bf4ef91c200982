"""A bound on the connections of a listening ZMQ socket.

    accepted ... ended    count connections; a peer without the key is soon disconnected (`curve`)
    at the bound          the kernel drops packets to the listening socket: a new peer waits, and
                          connects once another connection has ended

ZMQ accepts connections while the process has free file descriptors. An engine without a free
descriptor cannot open files. Each port may therefore use only a part of the descriptors.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import struct

MOST_OPEN = 16_384
_PART = 4  # each of three ports gets 1/4 of the file descriptors; files get the last quarter
_ENOUGH = _PART * MOST_OPEN
_FEW = 1024  # a warning is logged if a port allows fewer connections; each gateway worker needs one
# constants from asm-generic/socket.h that Python's socket module lacks
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
# BPF_RET | BPF_K: returns the number of bytes to keep of a packet; 0 drops the packet.
_RETURN = 0x06


def allow_open_files() -> None:
    """Raise this process's limit of open files, enough for the maximum number of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_open() -> int:
    """Return the maximum number of connections to a port, from the limit of open files."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_OPEN if soft == resource.RLIM_INFINITY else min(MOST_OPEN, soft // _PART)


def few_connections() -> str | None:
    """Return a warning if the hard limit of open files allows only few connections, else None."""
    if (most := most_open()) >= _FEW:
        return None
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return (
        f"each port over TCP has at most {most} connections at once, "
        f"by the hard limit of {hard} open files (ulimit -Hn)"
    )


class OpenConnections:
    """The connections of one listening socket. Used by one thread only."""

    def __init__(self, listening: int, most: int) -> None:
        """Count connections to the descriptor `listening`. The caller closes it."""
        self.is_full = False
        self._listening = socket.socket(fileno=os.dup(listening))
        self._most = most
        self._open: set[int] = set()

    def accepted(self, descriptor: int) -> None:
        """Count a new connection. At the bound, stop accepting. Raises OSError if that fails."""
        self._open.add(descriptor)
        if len(self._open) >= self._most and not self.is_full:
            drop_all(self._listening)
            self.is_full = True

    def ended(self, descriptor: int) -> None:
        """Count a connection as ended, and listen again if there is room."""
        self._open.discard(descriptor)
        if self.is_full and len(self._open) < self._most:
            drop_none(self._listening)
            self.is_full = False

    def close(self) -> None:
        """Close this object's copy of the descriptor, because an open copy keeps the port open."""
        self._listening.close()


def drop_all(listening: socket.socket) -> None:
    """Make the kernel drop all packets that arrive at a socket. Raises OSError."""
    rule = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
    rules = struct.pack("HP", 1, ctypes.addressof(rule))  # `struct sock_fprog` of the kernel
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, rules)


def drop_none(listening: socket.socket) -> None:
    """Make the kernel accept packets to a socket again."""
    listening.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
