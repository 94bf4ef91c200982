"""The sending of recorded flushes to an engine: all before its first use, later the new ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from engine.link.messages import RecordedFlushes

_log = logging.getLogger(__name__)

ReadFlushes: TypeAlias = Callable[[], Awaitable[Mapping[str, str | None]]]


class FlushTelling:
    """The flushes sent to one engine.

    `read` returns all recorded flushes by id. None: the gateway records no flushes.
    """

    def __init__(self, read: ReadFlushes | None, send: Callable[[RecordedFlushes], bool]) -> None:
        self._read, self._send = read, send
        self._flushes: dict[str, str | None] = {}
        self._telling: asyncio.Task[None] | None = None

    def tell(self, flushes: Mapping[str, str | None], *, is_connected: bool) -> None:
        """Remember the recorded flushes. Send the new ones if the engine is connected."""
        new = {one: flow for one, flow in flushes.items() if one not in self._flushes}
        self._flushes = dict(flushes)
        if new and is_connected:
            self._send(RecordedFlushes(flushes=new))

    def tell_all(self, told: Callable[[], None]) -> None:
        """Send all flushes to an engine that has just connected, then call `told`."""
        if self._read is None:
            told()
            return
        self._telling = asyncio.create_task(self._tell_all(self._read, told), name="engine-flushes")
        self._telling.add_done_callback(log_failure)

    def stop(self) -> None:
        """Stop sending to an engine that is gone."""
        if self._telling is not None:
            self._telling.cancel()

    async def _tell_all(self, read: ReadFlushes, told: Callable[[], None]) -> None:
        flushes = await read()
        self._flushes |= flushes
        if self._flushes:
            self._send(RecordedFlushes(flushes=self._flushes))
        told()


def log_failure(task: asyncio.Task[None]) -> None:
    """Log the failure of a task. After such a failure no engine would become ready."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.critical("engines are not connected to any more", exc_info=error)
