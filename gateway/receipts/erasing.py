"""The erasure of deleted tenants, followed to its end, and its receipts.

    deleted --> flushed in all engines --> ... --> flushed again, once every gateway knows --> over
                        `-- a receipt says how far the erasure has come, and what is open

An engine that is asked for a flush again answers how far the flush has come. A receipt is made by
asking for the recorded flushes again. A deleted tenant's flushes are recorded for a month. Receipts
can be made during this month.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import EngineError
from engine.link.erasure import Erasure
from gateway.auth.running_requests import GROUP_KNOWN_S
from gateway.errors import NotFound, Unavailable
from gateway.receipts.receipt import FILES, KEPT, Receipt, SignedReceipt, joined, moment
from gateway.sharing.flushing import Flushing, FlushResult
from gateway.state.records import CacheFlush, ErasedTenant

if TYPE_CHECKING:
    from gateway.receipts.signing import ReceiptKey

LOOK_S = 0.1


class _Recorded(NamedTuple):
    """A recorded erasure.

    `is_due_again` tells whether all gateways know of the deletion. Engines then flush again.
    """

    flush: CacheFlush
    of: ErasedTenant
    is_due_again: bool

    @property
    def ids(self) -> list[str]:
        """The ids of all flushes of the erasure that are due, oldest first."""
        again = [self.flush.second_id] if self.is_due_again else []
        return [*self.flush.earlier_ids, self.flush.id, *again]


class Erasing:
    """The erasures of one gateway process. Used in one event loop."""

    def __init__(
        self, flushing: Flushing, make_key: Callable[[], ReceiptKey], clock: Callable[[], float]
    ) -> None:
        """`make_key` is called when a signature is first asked for."""
        self._flushing = flushing
        self._make_key = make_key
        self._clock = clock

    @cached_property
    def key(self) -> ReceiptKey:
        """The key that signs receipts and exported prefixes."""
        return self._make_key()

    async def drop(self, tenant_id: str, *, again: bool) -> FlushResult:
        """Drop the prefixes of a tenant that is not deleted.

        With `again`, the prefixes are dropped once more when all gateways refuse the tenant's
        requests. If dropping fails, the caller's change stands. Either the flush is recorded for
        later, or no request can reach the blocks that remain in the cache.
        """
        try:
            return await self._flushing.flush(tenant_id, GROUP_KNOWN_S if again else 0.0)
        except (EngineError, Unavailable):
            return FlushResult(None)

    async def record(self, of: ErasedTenant) -> CacheFlush:
        """Record the erasure of a tenant that will be deleted next. Raises Unavailable.

        If this process ends before the tenant is deleted, the erasure is only a flush.
        """
        return await self._flushing.record(of.id, GROUP_KNOWN_S, of)

    async def erase(self, flush: CacheFlush) -> FlushResult:
        """Drop a deleted tenant's prefixes. A flush that fails is done later, since it is recorded.

        The flush is recorded anew, after the deletion, which may have taken long. The time until
        all gateways know of the deletion begins with this record. Engines may have done the first
        flush already, and have counted its blocks under its own id. If the tenant is deleted twice
        at the same time, both deletions' flushes count.
        """
        try:
            then = await self._flushing.record(
                flush.tenant_id, GROUP_KNOWN_S, flush.erased, earlier_ids=(flush.id,)
            )
            result = await self._flushing.carry_out(then)
            before = [await self._flushing.ask(then, one) for one in then.earlier_ids]
        except (EngineError, Unavailable):
            return FlushResult(None)
        if result.blocks is None:
            return result
        return replace(result, blocks=result.blocks + sum(one.blocks or 0 for one in before))

    async def receipt(self, tenant_id: str, by: str, wait_s: float) -> SignedReceipt:
        """Wait for the end of a tenant's erasure, up to `wait_s` seconds, and sign a receipt.

        Raises NotFound if no erasure of the tenant is recorded, Unavailable, or EngineError.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + wait_s
        while True:
            found = await self._receipt(await self._recorded(tenant_id), by)
            if found.is_complete or loop.time() >= give_up:
                return self.key.sign(found)
            await asyncio.sleep(LOOK_S)

    async def _recorded(self, tenant_id: str) -> _Recorded:
        flushes, due = await self._flushing.recorded()
        is_deleted = await self._flushing.is_deleted(tenant_id)
        for flush in flushes:
            if is_deleted and flush.tenant_id == tenant_id and flush.erased is not None:
                return _Recorded(flush, flush.erased, is_due_again=flush.second_id in due)
        raise NotFound(
            "no such deleted tenant is recorded: it is a month ago, or everything was flushed since"
        )

    async def _receipt(self, recorded: _Recorded, by: str) -> Receipt:
        flush, of = recorded.flush, recorded.of
        engines: dict[str, Erasure] = {}
        for flush_id in recorded.ids:
            result = await self._flushing.ask(flush, flush_id)
            for name, then in result.erased.items():
                engines[name] = joined(engines[name], then) if name in engines else then
        return Receipt(
            id=f"er_{secrets.token_hex(8)}",
            tenant=of.id,
            name=of.name,
            by=by,
            deleted_at=moment(flush.at),
            at=moment(self._clock()),
            flush=flush.id,
            keys=of.keys,
            responses=of.responses,
            schemas=of.schemas,
            adapters=of.adapters,
            kept=(*KEPT, FILES) if of.adapters else KEPT,
            engines=engines,
            awaited=result.awaited,
            open=tuple(_open(engines, result, recorded)),
        )


def _open(engines: dict[str, Erasure], result: FlushResult, recorded: _Recorded) -> Iterator[str]:
    for name in result.awaited:
        yield f"engine {name} is away: it erases when it is back, before it serves"
    for name in sorted(result.asked - set(result.awaited) - set(engines)):
        yield f"engine {name} is of a release that does not tell what it erases"
    for name, erasure in engines.items():
        if erasure.running:
            yield f"engine {name}: {erasure.running} requests still end"
        if erasure.disk == "under way":
            yield f"engine {name}: records on its disk"
    if recorded.flush.again_s is not None and not recorded.is_due_again:
        yield "what gateways may have admitted before they knew: erased some seconds later"
