"""A network between gateways and an engine, which can delay or hold bytes and cut connections.

    gateways --(toward)--> port, port + 1    proxy    engine's port, port + 1
             <--(back)----

TCP sends lost packets again. So a network that drops packets for a while only delays bytes, as
`hold` does. A network that always drops packets ends connections, as `cut` does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

Direction = Literal["toward", "back"]
BOTH: tuple[Direction, ...] = ("toward", "back")
_CHUNK = 1 << 16
_START_S = 10.0


class ProxiedLink:
    """The proxies of both ports of an engine's link. Any thread may call the methods."""

    def __init__(self, port: int, engine_port: int) -> None:
        self.port = port
        self.delay_s = 0.0  # delay of all bytes, in both directions
        # numbers of bytes that have passed
        self.bytes: dict[Direction, int] = dict.fromkeys(BOTH, 0)
        self._engine_port = engine_port
        self._loop = asyncio.new_event_loop()
        self._passes: dict[Direction, asyncio.Event] = {}
        self._open: set[asyncio.StreamWriter] = set()
        self._servers: list[asyncio.Server] = []

    @property
    def address(self) -> str:
        """The address at which gateways find the engine."""
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        """The gateways' name of the engine."""
        return f"127.0.0.1:{self.port}"

    def hold(self, *directions: Direction) -> None:
        """Hold all bytes in these directions, or in both. New connections get no answer either."""
        for direction in directions or BOTH:
            self._loop.call_soon_threadsafe(self._passes[direction].clear)

    def heal(self) -> None:
        """Let the held bytes pass, and all later bytes."""
        for passes in self._passes.values():
            self._loop.call_soon_threadsafe(passes.set)

    def cut(self) -> None:
        """Reset all connections and drop the held bytes."""
        self._do(self._cut())

    @contextmanager
    def running(self) -> Iterator[None]:
        """Listen while the context is open."""
        thread = threading.Thread(target=self._loop.run_forever, name="proxied-link")
        thread.start()
        try:
            self._do(self._listen())
            yield
        finally:
            self._do(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_S)

    async def _listen(self) -> None:
        self._passes = {direction: asyncio.Event() for direction in BOTH}
        self.heal()
        for offset in (0, 1):  # the port for messages, and the port for heartbeats
            engine_port = self._engine_port + offset

            async def meet(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, at: int = engine_port
            ) -> None:
                await self._join(reader, writer, at)

            server = await asyncio.start_server(meet, "127.0.0.1", self.port + offset)
            self._servers.append(server)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        joins = asyncio.all_tasks() - {asyncio.current_task()}
        for one in joins:
            one.cancel()
        await asyncio.gather(*joins, return_exceptions=True)
        await self._cut()
        for _ in range(3):  # transports close in the next iterations of the loop
            await asyncio.sleep(0)

    async def _cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _join(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, engine_port: int
    ) -> None:
        """Pass bytes between a gateway's connection and a new connection to the engine."""
        self._open.add(writer)
        try:
            theirs, ours = await asyncio.open_connection("127.0.0.1", engine_port)
        except OSError:
            writer.transport.abort()
            self._open.discard(writer)
            return
        self._open.add(ours)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump("toward", reader, ours))
                both.create_task(self._pump("back", theirs, writer))
        finally:
            for one in (writer, ours):
                one.transport.abort()
            self._open -= {writer, ours}

    async def _pump(
        self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while content := await reader.read(_CHUNK):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._passes[direction].wait()
                writer.write(content)
                await writer.drain()
                self.bytes[direction] += len(content)
        writer.transport.abort()
