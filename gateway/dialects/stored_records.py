"""The records that dialects keep in the store of responses: cached contents, threads, responses.

They are a tenant's own prompts and answers, kept for a time, and share one room.

Knows: the room, and the memory that reading takes. Does not know: what a record holds.
"""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Raw

from gateway.config import Bounds
from gateway.http.body_memory import BodyLease
from gateway.state.records import ResponseRoom, StoredResponse
from gateway.state.store import ResponseStore


@dataclass(frozen=True, slots=True)
class StoredRecords:
    """The records of all tenants; `clock` gives seconds since the epoch."""

    store: ResponseStore
    bounds: Bounds
    clock: Callable[[], float]

    async def find(self, tenant_id: str, record_id: str, body: BodyLease) -> StoredResponse:
        """Find a record of the tenant; raise NotFound if there is none.

        `body` is grown by the record's bytes, and before it is read by as many as it may have;
        raises as that does.
        """
        before = body.size
        most = before + self.bounds.max_response_bytes
        await body.grow(max(before, min(most, self.bounds.max_tenant_body_bytes)))
        read = 0
        try:
            record = await self.store.find_response(tenant_id, record_id, now=self.clock())
            read = len(memoryview(record.content))
        finally:
            body.shrink(min(body.size, before + read))
        return record

    async def keep(
        self, tenant_id: str, record_id: str, content: bytes, created_at: float, seconds: float
    ) -> StoredResponse | None:
        """Store `content` for so many seconds; None if it is larger than the room.

        Conflict for an id that is there, NotFound for a tenant that is not.
        """
        bounds = self.bounds
        record = StoredResponse(
            id=record_id,
            tenant_id=tenant_id,
            created_at=created_at,
            expires_at=created_at + seconds,
            content=Raw(content),
        )
        room = ResponseRoom(
            of_one=bounds.max_response_bytes,
            of_tenant=bounds.max_tenant_response_bytes,
            of_all=bounds.max_all_response_bytes,
        )
        return record if await self.store.keep_response(record, room) else None
