"""The flushes: recorded, then done by all engines. Absent engines do them when they connect.

    recorded in the state --> engines that answer have dropped the blocks, and tell how many
                          `-> other engines are told by the first gateway that reaches them

When a gateway connects to an engine, it sends all recorded flushes (`gateway.replicas.flushes`),
before the engine serves. An engine may be connected to this gateway, but not to the gateway that
recorded a flush. A gateway therefore passes other gateways' flushes on to its engines. The gateway
does so at once if the gateways notify each other (Redis), else within REFRESH_S. A flush that is
due again later is made by the gateways that run by then.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from engine.errors import EngineUnavailable
from engine.link.erasure import Erasure
from engine.link.interface import Engine
from engine.link.query_messages import Flush
from gateway.errors import NotFound, Unavailable
from gateway.processes.periodic import repeated
from gateway.replicas.flushes import FlushReader
from gateway.replicas.queries import NotAllFlushed
from gateway.sharing.flush_folding import folding
from gateway.sharing.renewed import Renewed
from gateway.state.records import CacheFlush, ErasedTenant, Tenant
from gateway.state.store import FlushLog, Records

ALONE = "0"  # name of a gateway's only engine
MOST_EARLIER = 8  # maximum number of remembered flushes of an erasure, which a receipt asks for


class FlushState(FlushLog, Records, Protocol):
    """The parts of the state that flushes need. Deleted tenants are not listed."""


@dataclass(frozen=True, slots=True)
class FlushResult:
    """The number of dropped blocks; None if no engine has answered.

    `awaited` has the names of absent engines, which do the flush when they connect again. For a
    flush of one tenant, `erased` tells how far the erasure has come in each of the other engines.
    """

    blocks: int | None
    awaited: tuple[str, ...] = ()
    erased: Mapping[str, Erasure] = field(default_factory=dict)
    # names of all engines
    asked: AbstractSet[str] = field(default_factory=frozenset, compare=False)


class Flushing(Renewed):
    """The flushes that one gateway process makes. Used in one event loop."""

    def __init__(
        self, state: FlushState, engine: Engine, clock: Callable[[], float], reader: FlushReader
    ) -> None:
        """Share the process's `reader` of flushes. `clock` returns seconds since the epoch."""
        super().__init__()
        self._reader = reader
        self._state = state
        self._engine = engine
        self._clock = clock
        self._told: dict[str, str | None] = {}

    async def flush(
        self, tenant_id: str | None, again_s: float = 0.0, erased: ErasedTenant | None = None
    ) -> FlushResult:
        """Drop the cached blocks of a tenant, or (None) of all tenants, for good.

        `again_s` and `erased` are passed to `record`. Raises Unavailable, without dropping
        anything, or an EngineError other than EngineUnavailable.
        """
        return await self.carry_out(await self.record(tenant_id, again_s, erased))

    async def carry_out(self, flush: CacheFlush) -> FlushResult:
        """Make all engines do a recorded flush. Raises the errors of `flush`."""
        flushed = await self.ask(flush, flush.id)
        await self.changed()  # engines that hang do the flush when they continue
        await self._fold()
        return flushed

    async def record(
        self,
        tenant_id: str | None,
        again_s: float = 0.0,
        erased: ErasedTenant | None = None,
        earlier_ids: tuple[str, ...] = (),
    ) -> CacheFlush:
        """Record a flush that engines are told of soon, and again `again_s` seconds from now.

        The flush replaces the tenant's earlier flushes, and is repeated no sooner than they would
        have been. `erased` is given if the tenant was deleted, and `earlier_ids` if other flushes
        began this erasure. A recorded erasure of the tenant goes on. Raises Unavailable.
        """
        flushes = await self._state.flushes()
        due = self._reader.due(flushes)
        left = [
            one.again_s
            for one in flushes
            if one.again_s and tenant_id in (None, one.tenant_id) and one.second_id not in due
        ]
        longest = max(again_s, *left, 0.0)
        for one in flushes:
            if one.erased is not None and one.tenant_id == tenant_id:
                earlier_ids = tuple(dict.fromkeys((*one.earlier_ids, one.id, *earlier_ids)))
                erased = erased or one.erased
        flush = CacheFlush.new(
            tenant_id,
            at=self._clock(),
            again_s=longest or None,
            erased=erased,
            earlier_ids=earlier_ids[-MOST_EARLIER:],
        )
        await self._state.add_flush(flush)
        return flush

    async def recorded(self) -> tuple[Sequence[CacheFlush], Collection[str]]:
        """Return all recorded flushes, oldest first, and the ids of due ones; raise Unavailable."""
        flushes = await self._state.flushes()
        return flushes, self._reader.due(flushes)

    async def is_deleted(self, tenant_id: str) -> bool:
        """Return whether no tenant has this id; raise Unavailable."""
        try:
            await self._state.get(Tenant, tenant_id)
        except NotFound:
            return True
        return False

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Pass other gateways' recorded flushes on to the engines while this context is open."""
        async with repeated(self.renew_when_due, "flushes"):
            yield

    async def ask(self, flush: CacheFlush, flush_id: str) -> FlushResult:
        """Ask all engines to do a recorded flush, once for each id, and return its result.

        Raises EngineError other than EngineUnavailable.
        """
        names = tuple(self._engine.replicas) or (ALONE,)
        asked = frozenset(names)
        try:
            done = await self._engine.ask(Flush(flow=flush.tenant_id, flush_id=flush_id))
        except NotAllFlushed as error:
            is_any = len(error.missed) < len(self._engine.replicas)
            blocks = error.blocks if is_any else None
            return FlushResult(blocks, tuple(error.missed), error.erased, asked)
        except EngineUnavailable:
            return FlushResult(None, names, {}, asked)
        alone = {} if done.erasure is None else {ALONE: done.erasure}
        return FlushResult(done.blocks, (), done.replicas or alone, asked)

    async def _fold(self) -> None:
        with suppress(Unavailable):
            tenants = {one.id for one in await self._state.every(Tenant)}
            found = folding(await self._state.flushes(), tenants, self._clock())
            if found is not None:
                await self._state.fold_flushes(*found)

    async def renew(self) -> None:
        """Pass recorded flushes on to engines that have not received them; raise Unavailable."""
        flushes = self._reader.due(await self._state.flushes())
        if flushes != self._told:
            self._engine.flush_recorded(flushes)
            self._told = flushes
