"""The other workers of this gateway, which a page's worker asks for their data.

Workers share a port, so any worker may answer a page. Each worker listens on a Unix socket in their
shared directory, which is open only to their user. A worker answers with its latest refusals, with
the requests that it is answering, and with the cache misses of tenants whose page is open. The
worker that answers a page joins the data of all workers. Nothing is sent while nobody looks at a
page.

Elsewhere: the questions and answers (`known.py`).
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

A = TypeVar("A")

ANSWER_S = 1.0
_MAX_BYTES = 4 << 20
_SUFFIX = ".sock"
# matches the names of workers' sockets, but not of the router process's socket
_OF_WORKERS = f"[0-9]*{_SUFFIX}"


class Heard(NamedTuple, Generic[A]):
    """The workers' answers, and the process ids of living workers that did not answer in time."""

    answers: list[A]
    silent: list[int]


class Siblings:
    """The other workers of this gateway. Without a `directory` there are no other workers."""

    def __init__(self, directory: Path | None = None, own: int | None = None) -> None:
        self._directory = directory
        self._own = own or os.getpid()

    @asynccontextmanager
    async def told(self, answer: Callable[[bytes], bytes]) -> AsyncIterator[None]:
        """Answer the other workers' questions with `answer` while this context is open."""
        if self._directory is None:
            yield
            return

        async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                writer.write(answer(await reader.read()))
                await writer.drain()
            writer.close()

        path = self._directory / f"{self._own}{_SUFFIX}"
        path.unlink(missing_ok=True)  # the socket of a dead worker that had the same process id
        server = await asyncio.start_unix_server(tell, path)
        try:
            yield
        finally:
            server.close()
            path.unlink(missing_ok=True)

    async def ask(self, question: msgspec.Struct, kind: type[A]) -> Heard[A]:
        """Ask all other workers. Each worker answers with a `kind`. Dead workers are skipped."""
        paths = [] if self._directory is None else sorted(self._directory.glob(_OF_WORKERS))
        others = [path for path in paths if int(path.stem) != self._own]
        asked = msgspec.msgpack.encode(question)
        came = await asyncio.gather(*(_asked(path, asked) for path in others))
        decoder = msgspec.msgpack.Decoder(kind)
        answers = [decoder.decode(one) for one in came if isinstance(one, bytes) and one]
        silent = [int(path.stem) for path, one in zip(others, came, strict=True) if one is None]
        return Heard(answers, silent)


async def _asked(path: Path, question: bytes) -> bytes | None:
    """Ask one worker; return b"" for a dead worker, or None for a silent worker."""
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(path, limit=_MAX_BYTES)
            try:
                writer.write(question)
                writer.write_eof()
                return await reader.read()
            finally:
                writer.close()
    except TimeoutError:
        return None
    except OSError:  # no process listens on the socket any more
        return b""
