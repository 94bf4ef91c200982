"""A fake engine that can die, stand still, stop and be full, as one of several replicas.

Its requests go through a queue, as those of `EngineClient` do, so that they can be taken away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from engine.errors import (
    EngineDied,
    EngineError,
    EngineUnavailable,
    error_from_code,
)
from engine.link.interface import OnEnd
from engine.link.messages import Failed, Finished, Generate, Tokens
from tests.doubles.engine.fake_engine import WELCOME, FakeEngine

_Told = Tokens | Finished | EngineError


class FakeReplica(FakeEngine):
    """A `ReplicaEngine`. `engine_id` is new after each `come`."""

    def __init__(self, name: str, fingerprint: bytes = WELCOME.fingerprint) -> None:
        self._starts = 0
        self._told: dict[str, asyncio.Queue[_Told]] = {}
        self._hearing: dict[str, OnEnd] = {}
        self.fingerprint = fingerprint  # of the next process
        self.name = name
        self.refusal: str | None = None  # the code that new requests are refused with
        self.given_up: list[str] = []
        super().__init__(None)
        self.come()

    def come(self) -> None:
        """Connect, as a new process."""
        self._starts += 1
        self.is_stalled, self.refusal = False, None
        self.welcome = replace(
            WELCOME, engine_id=f"{self.name}{self._starts}", fingerprint=self.fingerprint
        )

    def die(self) -> None:
        """Be gone, with all that runs and all that is cached; nobody hears of any end."""
        self.welcome = None
        self._hearing.clear()
        self.lose_cache()
        for told in self._told.values():
            told.put_nowait(EngineDied("the engine died"))

    @property
    def is_idle(self) -> bool:
        """As `EngineClient.is_idle`."""
        return not (self._told or self._hearing)

    def give_up(self, request_id: str, why: str) -> bool:
        """As `EngineClient.give_up`."""
        told = self._told.get(request_id)
        if told is None or not told.empty():
            return False
        self.given_up.append(request_id)
        told.put_nowait(EngineUnavailable(why))
        return True

    async def generate(
        self, request: Generate, on_end: OnEnd | None = None
    ) -> AsyncGenerator[Tokens | Finished, None]:
        """As the fake engine, until it dies or the request is taken away."""
        if self.welcome is None or self.is_stalled:
            raise EngineUnavailable("no engine is connected")
        if self.refusal is not None:
            if on_end is not None:
                on_end(Failed(request_id=request.request_id, code=self.refusal, message="refused"))
            raise error_from_code(self.refusal, "refused")
        told = self._told[request.request_id] = asyncio.Queue()
        if on_end is not None:
            self._hearing[request.request_id] = on_end
        running = asyncio.create_task(self._run(request, told))
        try:
            while True:
                event = await told.get()
                if isinstance(event, EngineError):
                    raise event
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            del self._told[request.request_id]
            running.cancel()
            await asyncio.wait([running])

    def _ended(self, end: Finished | Failed) -> None:
        on_end = self._hearing.pop(end.request_id, None)
        if on_end is not None:
            on_end(end)

    async def _run(self, request: Generate, told: asyncio.Queue[_Told]) -> None:
        try:
            async with aclosing(super().generate(request, self._ended)) as events:
                async for event in events:
                    told.put_nowait(event)
        except EngineError as error:
            told.put_nowait(error)
