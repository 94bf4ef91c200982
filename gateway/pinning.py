"""Keeps the pins of an engine the same as what is published.

Each gateway, and each of its workers, asks the engine for all pins; asking twice does no harm. A
new engine is asked for all of them again. A refused pin is asked for again later.

Knows: pins, by the ids of published prefixes, and how the engine answered. Does not know: how
prefixes are stored or made into tokens (`published.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any

from engine.errors import EngineError
from engine.interface import Engine, PinnedPrefix

RETRY_S = 10.0


class Pinning:
    """The pins of one engine, asked for in the background. For one event loop."""

    def __init__(self, engine: Engine, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._monotonic = monotonic
        self._engine_id: str | None = None
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._refused: dict[str, tuple[float, str]] = {}  # since when, and why
        self._letting_go: dict[str, asyncio.Task[None]] = {}

    def refusal(self, pin_id: str) -> str | None:
        """Why the engine refused to pin it; None if it did not."""
        refused = self._refused.get(pin_id)
        return None if refused is None else refused[1]

    def bring(
        self,
        engine_id: str,
        wanted: AbstractSet[str],
        gone: AbstractSet[str],
        prefix_of: Callable[[str], PinnedPrefix],
    ) -> None:
        """Have the ids `wanted` pinned and `gone` not; `prefix_of` gives what is sent for an id."""
        if engine_id != self._engine_id:
            self._begin_anew(engine_id, gone)
        for pin_id in self._asked.keys() - wanted:
            self._asked.pop(pin_id).cancel()
            self._let_go(pin_id)
        self._refused = {name: why for name, why in self._refused.items() if name in wanted}
        for pin_id in sorted(wanted):
            if self._is_to_be_asked(pin_id):
                self._asked[pin_id] = _begin(self._pin(prefix_of(pin_id)))

    async def close(self) -> None:
        """Stop waiting for answers; what is pinned stays pinned."""
        tasks = [*self._asked.values(), *self._letting_go.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin_anew(self, engine_id: str, gone: AbstractSet[str]) -> None:
        for task in (*self._asked.values(), *self._letting_go.values()):
            task.cancel()
        self._engine_id, self._asked, self._refused, self._letting_go = engine_id, {}, {}, {}
        # An engine that outlived its gateways may hold what was deleted meanwhile.
        self._letting_go[""] = _begin(self._let_go_of_any(gone))

    def _is_to_be_asked(self, pin_id: str) -> bool:
        if pin_id not in self._asked:
            return True
        refused = self._refused.get(pin_id)
        is_over = self._asked[pin_id].done()
        return is_over and refused is not None and self._monotonic() >= refused[0] + RETRY_S

    async def _pin(self, prefix: PinnedPrefix) -> None:
        try:
            await self._engine.pin(prefix)
        except EngineError as error:
            self._refused[prefix.pin_id] = (self._monotonic(), error.message)
        else:
            self._refused.pop(prefix.pin_id, None)

    def _let_go(self, pin_id: str) -> None:
        self._letting_go[pin_id] = _begin(self._unpin(pin_id))

    async def _unpin(self, pin_id: str) -> None:
        with suppress(EngineError):  # an engine that is away holds nothing when it is back
            await self._engine.unpin(pin_id)
        self._letting_go.pop(pin_id, None)

    async def _let_go_of_any(self, gone: AbstractSet[str]) -> None:
        with suppress(EngineError):
            pinned = (await self._engine.stats()).pins.pinned
            for pin_id in pinned.keys() & gone:
                await self._engine.unpin(pin_id)


def _begin(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(work, name="pinning")
