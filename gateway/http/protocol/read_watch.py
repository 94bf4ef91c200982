"""The watch on clients that read their answers too slowly, which cuts them off.

    watch ... look ... look        every `stalled_write_s`, while anything waits to be sent
               `------> abort      the client took less than a KiB per second since the last look

Bytes wait in the transport, then in the socket's send queue until the client's machine has received
them. The bytes in both places are measured. The kernel takes more bytes from the transport only
when a third of its send queue (some megabytes) is free. A steady client on a slow line may need
minutes to free this much.
"""

import asyncio
import fcntl
import struct
import sys
import termios

from gateway.http.protocol.timer import Timer

LEAST_RATE = 1024  # minimum bytes a second that a client must read


class ReadWatch:
    """Watches how fast the client of one connection reads."""

    __slots__ = ("_every_s", "_look", "_transport", "_waiting")

    def __init__(self, transport: asyncio.Transport, every_s: float) -> None:
        self._transport = transport
        self._every_s = every_s
        self._waiting = 0
        self._look = Timer(asyncio.get_running_loop(), self._cut_off_or_go_on)

    def begin(self) -> None:
        """Check every `every_s` seconds, until `end`, whether the client has read."""
        self._waiting = self._unread()
        self._look.restart(self._every_s)

    def cut_off_in(self, seconds: float) -> None:
        """Cut the connection off in the given seconds if it is still open."""
        self._waiting = 0
        self._look.restart(seconds)

    def end(self) -> None:
        """Stop watching."""
        self._look.restart(None)

    def _cut_off_or_go_on(self) -> None:
        if self._waiting - self._unread() < LEAST_RATE * self._every_s:
            self._transport.abort()
        else:
            self.begin()

    def _unread(self) -> int:
        return self._transport.get_write_buffer_size() + _queued(self._transport)


def _queued(transport: asyncio.Transport) -> int:
    """Count the bytes in the socket's send queue; 0 if the system cannot tell."""
    socket = transport.get_extra_info("socket")
    if socket is None or sys.platform != "linux":
        return 0
    try:
        told = fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:  # the socket was closed meanwhile
        return 0
    [queued] = struct.unpack("i", told)
    return int(queued)
