"""A fake engine for tests of several replicas. It can die, stall, stop and be full.

As in `EngineClient`, requests wait in a queue, from which they can be taken away. With
an `exchange`, replicas fetch blocks from each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import takewhile
from typing import TypeVar

from msgspec.structs import replace

from engine.errors import (
    EngineDied,
    EngineError,
    EngineUnavailable,
    error_from_code,
)
from engine.link.event_messages import Failed, Finished, Reused, Tokens
from engine.link.gateway_end.outlasting import LEAVE_S, outlasting
from engine.link.interface import OnEnd
from engine.link.messages import FetchSource, Generate, Role
from engine.link.stats.tier_stats import TierTokens
from tests.doubles.engine.fake_engine import WELCOME, FakeEngine
from tests.doubles.gateway.keys import split_keys

_Told = Tokens | Finished | EngineError
E = TypeVar("E", Tokens, Finished, Tokens | Finished)
_PATIENCE = 1000  # maximum number of event loop iterations to wait


class FakeReplica(FakeEngine):
    """A `ReplicaEngine`. `engine_id` is new after each `come`."""

    def __init__(self, name: str, fingerprint: bytes = WELCOME.fingerprint) -> None:
        self._starts = 0
        self._told: dict[str, asyncio.Queue[_Told]] = {}
        self._hearing: dict[str, OnEnd] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self.fingerprint = fingerprint  # fingerprint of the next process
        self.name = name
        self.refusal: str | None = None  # code with which new requests are refused
        self.given_up: list[str] = []
        self.exchange: dict[str, FakeReplica] | None = None  # all replicas, by address
        self.role: Role = "both"  # role of the next process
        self.max_model_len = WELCOME.max_model_len  # maximum context of the next process
        self.cancel_turns = 0  # event loop iterations for which a cancelled request still computes
        self.computes = asyncio.Event()  # while cleared, no prompt is computed
        self.computes.set()
        super().__init__(None)
        self.come()

    @property
    def address(self) -> str:
        """The address of the replica's exchange."""
        return f"/exchange/{self.name}"

    def joins(self, exchange: dict[str, FakeReplica], role: Role = "both") -> None:
        """Join an exchange as a new process: serve blocks to other replicas, and fetch theirs."""
        self.exchange, self.role = exchange, role
        exchange[self.address] = self
        self.come()

    def come(self) -> None:
        """Connect as a new process."""
        self._starts += 1
        self.is_stalled, self.refusal = False, None
        self.welcome = replace(
            WELCOME,
            engine_id=f"{self.name}{self._starts}",
            fingerprint=self.fingerprint,
            exchange_address=None if self.exchange is None else self.address,
            role=self.role,
            max_model_len=self.max_model_len,
        )

    def die(self) -> None:
        """Die and lose all cached blocks. Requests get EngineDied instead of an end."""
        self.welcome = None
        for request_id in self._hearing:
            if request_id in self.computed:
                self.computed[request_id].is_lost = True
        self._hearing.clear()
        for running in self._running.values():
            running.cancel()  # a request that had not begun is never computed
        self.lose_cache()
        for told in self._told.values():
            told.put_nowait(EngineDied("the engine died"))

    @property
    def is_idle(self) -> bool:
        """True if no request waits or runs."""
        return not (self._told or self._hearing)

    def give_up(self, request_id: str, why: str) -> bool:
        """Take back a request that has no events yet, and return whether this was possible."""
        told = self._told.get(request_id)
        if told is None or not told.empty():
            return False
        self.given_up.append(request_id)
        told.put_nowait(EngineUnavailable(why))
        return True

    async def generate(
        self, request: Generate, on_end: OnEnd | None = None
    ) -> AsyncGenerator[Tokens | Finished, None]:
        """Yield the fake engine's events until it dies or the request is taken away."""
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
        self._running[request.request_id] = running
        try:
            while True:
                event = await told.get()
                if isinstance(event, EngineError):
                    raise event
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            await outlasting(self._end(running), LEAVE_S)
            del self._told[request.request_id], self._running[request.request_id]

    async def _end(self, running: asyncio.Task[None]) -> None:
        for _ in range(self.cancel_turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])

    def _ended(self, end: Finished | Failed) -> None:
        on_end = self._hearing.pop(end.request_id, None)
        if on_end is not None:
            on_end(end)

    async def _run(self, request: Generate, told: asyncio.Queue[_Told]) -> None:
        try:
            fetched = await self._fetch(request, request.source) if request.source else 0
            if request.source is not None and request.source.only:
                self.requests.append(request)
                told.put_nowait(_fetched_alone(request, fetched))
                return
            await self.computes.wait()

            def ended(end: Finished | Failed) -> None:
                self._ended(end if isinstance(end, Failed) else _with_fetched(end, fetched))

            async with aclosing(super().generate(request, ended)) as events:
                async for event in events:
                    told.put_nowait(_with_fetched(event, fetched))
        except EngineError as error:
            told.put_nowait(error)

    async def _fetch(self, request: Generate, source: FetchSource) -> int:
        """Fetch blocks once the other replica has computed them, and count their tokens."""
        other = (self.exchange or {}).get(source.address)
        if other is None or other.welcome is None:
            return 0
        for _ in range(_PATIENCE):
            if source.request_id not in other._told or other.computes.is_set():
                break
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        keys = split_keys(request.block_keys)
        here, there = (
            len(list(takewhile(one._cached_keys.__contains__, keys))) for one in (self, other)
        )
        self._cached_keys.update(keys[:there])
        return 16 * max(there - here, 0)


def _with_fetched(event: E, fetched: int) -> E:
    if not fetched or event.reused is None:
        return event
    reused = event.reused
    own = max(reused.tiers.device - fetched, 0)
    told = replace(reused, tiers=TierTokens(own), fetched=reused.tiers.device - own)
    return replace(event, reused=told)


def _fetched_alone(request: Generate, fetched: int) -> Finished:
    return Finished(
        request_id=request.request_id,
        reason="length",
        prompt_tokens=len(request.token_ids) // 4,
        completion_tokens=0,
        reused=Reused(fetched=fetched),
    )
