"""The transport that uvicorn's request writes to, closed only when the connection decides so.

If a client asks to close the connection, uvicorn closes the transport as soon as the answer is
written. A client that is still sending its body would then lose the answer.
"""

import asyncio
from collections.abc import Callable


class AnsweringSide(asyncio.Transport):
    """A wrapper of `transport`. The function `close` replaces the transport's own `close`."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        self._close = close

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send `data`."""
        self._transport.write(data)

    def is_closing(self) -> bool:
        """Return whether the connection is closed or about to be."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Close once the answer is sent."""
        self._close()
