"""The records that dialects keep in the store of responses: cached contents, threads, responses.

All these records are a tenant's own prompts and answers, stored for a time. The records share the
limits on stored bytes.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from msgspec import Raw

from gateway.config import Bounds
from gateway.errors import NotFound
from gateway.http.body_memory import BodyLease
from gateway.state.records import ResponseRoom, StoredResponse
from gateway.state.store import ResponseStore
from gateway.state.store_errors import missing_response


@dataclass(frozen=True, slots=True)
class StoredRecords:
    """A store of all tenants' records. `clock` returns seconds since the epoch."""

    store: ResponseStore
    bounds: Bounds
    clock: Callable[[], float]

    async def find(self, tenant_id: str, record_id: str, body: BodyLease) -> StoredResponse:
        """Find a record of the tenant as `find_all` does; raise NotFound if there is none."""
        found = await self.find_all(tenant_id, (record_id,), body)
        if not found:
            raise missing_response()
        return found[0]

    async def find_all(
        self, tenant_id: str, record_ids: Sequence[str], body: BodyLease
    ) -> list[StoredResponse]:
        """Find the tenant's records with these ids. Skip ids without a record.

        Before the read, the memory counted for `body` grows by the maximum size of the records.
        After the read, the memory shrinks to the records' real size. Raises TooManyRequests or
        Unavailable if there is no room.
        """
        before = body.size
        most = before + len(record_ids) * self.bounds.max_response_bytes
        await body.grow(max(before, min(most, self.bounds.max_tenant_body_bytes)))
        found: list[StoredResponse] = []
        try:
            for record_id in record_ids:
                with suppress(NotFound):
                    found.append(
                        await self.store.find_response(tenant_id, record_id, now=self.clock())
                    )
        finally:
            after = before + sum(len(memoryview(record.content)) for record in found)
            body.shrink(after)
        await body.grow(after)
        return found

    async def drop(self, tenant_id: str, record_id: str) -> None:
        """Remove a record of the tenant; raise NotFound if there is none."""
        await self.store.drop_response(tenant_id, record_id, now=self.clock())

    async def keep(
        self, tenant_id: str, record_id: str, content: bytes, created_at: float, seconds: float
    ) -> StoredResponse | None:
        """Store `content` for `seconds`; return None if the content exceeds the limits.

        Raises Conflict if the id has a record, and NotFound if there is no such tenant.
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
