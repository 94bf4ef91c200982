"""A connection's transport as uvicorn's request uses it, which closes in the connection's own way.

uvicorn closes the transport of a client that asked for it as soon as the answer is written. If the
client is still sending, it would lose the answer.
"""

import asyncio
from collections.abc import Callable


class AnsweringSide(asyncio.Transport):
    """A wrapper of `transport` whose `close` is given."""

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
