"""The pinning of published prefixes in an engine.

Each gateway, and each of its workers, requests all pins from the engine. A repeated request does no
harm. A new engine is sent all requests again. A pin that is refused, or fails in any other way, is
requested again later.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Any

from engine.errors import EngineError
from engine.link.interface import Engine
from engine.link.query_messages import Pin, StatsQuery, Unpin

RETRY_S = 10.0
_LOG = logging.getLogger(__name__)


class Pinning:
    """The pins of published prefixes in one engine, made in the background.

    Used in one event loop.
    """

    def __init__(self, engine: Engine, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._monotonic = monotonic
        self._engine_id: str | None = None
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._refused: dict[str, tuple[float, str]] = {}
        self._letting_go: dict[str, asyncio.Task[None]] = {}

    def refusal(self, pin_id: str) -> str | None:
        """Return why the engine refused to pin a prefix, or None."""
        refused = self._refused.get(pin_id)
        return None if refused is None else refused[1]

    def bring(
        self,
        engine_id: str,
        wanted: AbstractSet[str],
        gone: AbstractSet[str],
        prefix_of: Callable[[str], Pin],
    ) -> None:
        """Let the engine pin the prefixes `wanted` and unpin the prefixes `gone`, given by id.

        `prefix_of` returns a prefix's tokens.
        """
        if engine_id != self._engine_id:
            self._begin_anew(engine_id, gone)
        for pin_id in self._asked.keys() - wanted:
            self._asked.pop(pin_id).cancel()
            self._let_go(pin_id)
        self._refused = {name: why for name, why in self._refused.items() if name in wanted}
        for pin_id in sorted(wanted):
            if self._is_to_be_asked(pin_id):
                self._asked[pin_id] = self._begin(self._pin(prefix_of(pin_id)), pin_id)

    async def close(self) -> None:
        """Stop waiting for the engine's answers. Pinned prefixes stay pinned."""
        tasks = [*self._asked.values(), *self._letting_go.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin_anew(self, engine_id: str, gone: AbstractSet[str]) -> None:
        for task in (*self._asked.values(), *self._letting_go.values()):
            task.cancel()
        self._engine_id, self._asked, self._refused, self._letting_go = engine_id, {}, {}, {}
        # An engine that outlived its gateways may hold pins of prefixes deleted meanwhile.
        self._letting_go[""] = self._begin(self._let_go_of_any(gone))

    def _is_to_be_asked(self, pin_id: str) -> bool:
        if pin_id not in self._asked:
            return True
        refused = self._refused.get(pin_id)
        is_over = self._asked[pin_id].done()
        return is_over and refused is not None and self._monotonic() >= refused[0] + RETRY_S

    async def _pin(self, prefix: Pin) -> None:
        try:
            await self._engine.ask(prefix, None)
        except EngineError as error:
            self._refused[prefix.pin_id] = (self._monotonic(), error.message)
        else:
            self._refused.pop(prefix.pin_id, None)

    def _let_go(self, pin_id: str) -> None:
        self._letting_go[pin_id] = self._begin(self._unpin(pin_id))

    async def _unpin(self, pin_id: str) -> None:
        with suppress(EngineError):  # an engine that is away holds no pins when it is back
            await self._engine.ask(Unpin(pin_id=pin_id), None)
        self._letting_go.pop(pin_id, None)

    async def _let_go_of_any(self, gone: AbstractSet[str]) -> None:
        with suppress(EngineError):
            pinned = (await self._engine.ask(StatsQuery(), None)).stats.pins.pinned
            for pin_id in pinned.keys() & gone:
                await self._engine.ask(Unpin(pin_id=pin_id), None)

    def _begin(self, work: Coroutine[Any, Any, None], pin_id: str = "") -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="pinning")
        # handles the task's end, since nobody awaits the task
        task.add_done_callback(partial(self._on_done, pin_id))
        return task

    def _on_done(self, pin_id: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("a pin was not set or let go", exc_info=error)
            self._refused[pin_id] = (self._monotonic(), "it failed: see the gateway's log")
