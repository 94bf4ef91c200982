"""A transport that sends an answer's head together with the first piece of its body.

uvicorn writes the head alone, and uvloop sends each write at once. The head would then be a
separate segment. This segment would wake the client before the first piece of the body is ready.
"""

import asyncio
from typing import Any

_HEAD = b"HTTP/1."


class CoalescedHead(asyncio.Transport):
    """A wrapper of `transport` that delays a head until the next write or loop turn."""

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send the waiting head, if any, and `data`. Data that looks like a head waits."""
        if not self._head and bytes(data[: len(_HEAD)]) == _HEAD:
            self._head = bytes(data)
            self._loop.call_soon(self._send_head)
            return
        if self._head:
            head, self._head = self._head, b""
            data = head + data
        self._transport.write(data)

    def _send_head(self) -> None:
        head, self._head = self._head, b""
        if head:
            self._transport.write(head)

    def write_eof(self) -> None:
        """Send the written data and close the sending side. The connection still receives data."""
        self._send_head()
        self._transport.write_eof()

    def close(self) -> None:
        """Close once all written data has been sent."""
        self._send_head()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._head = b""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether the connection is closed or about to be."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Receive no data until `resume_reading`."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive data again."""
        self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that wait to be sent."""
        return len(self._head) + self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the transport's information about the connection."""
        return self._transport.get_extra_info(name, default)
