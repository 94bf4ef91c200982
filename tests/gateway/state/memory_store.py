"""A store of the state in dictionaries, the simplest kind.

It has the properties of `StoreContract`, so it can replace any other store, and random tests
compare other stores with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.errors import Conflict, NotFound
from gateway.state.records import (
    ApiKey,
    AuditEntry,
    CacheFlush,
    Group,
    IsolationReport,
    ModuleSchema,
    PublishedPrefix,
    RegisteredEngine,
    ResponseRoom,
    StoredResponse,
    Tenant,
)
from gateway.state.store import MOST_SCHEMAS, D, R, Record
from gateway.state.usage_records import Counters, UsageRow


class MemoryStore:
    """Implements `gateway.state.store.Store` in memory; `lookups` counts calls of
    find_by_digest.
    """

    def __init__(self) -> None:
        self.tenants: dict[str, Tenant] = {}
        self.keys: dict[str, ApiKey] = {}
        self.groups: dict[str, Group] = {}
        self.prefixes: dict[str, PublishedPrefix] = {}
        self.responses: dict[tuple[str, str], tuple[StoredResponse, int]] = {}
        self.module_schemas: dict[str, dict[str, ModuleSchema]] = {}
        self.counters: dict[tuple[str, str, str], Counters] = {}
        self.batches: list[str] = []
        self.report: IsolationReport | None = None
        self.audit_log: list[AuditEntry] = []
        self.engines: dict[str, RegisteredEngine] = {}
        self.flushed: dict[str | None, CacheFlush] = {}
        self.lookups = 0

    async def create(self, record: R) -> None:
        records, unique = self._of(type(record)), _unique(record)
        if isinstance(record, ApiKey):
            await self.get(Tenant, record.tenant_id)
        if record.id in records or unique in map(_unique, records.values()):
            raise Conflict("taken")
        self._require_group(record)
        records[record.id] = record

    async def every(self, kind: type[R]) -> list[R]:
        return sorted(self._of(kind).values(), key=lambda record: record.created_at)

    async def get(self, kind: type[R], record_id: str) -> R:
        if record_id not in self._of(kind):
            raise NotFound("no such record")
        return self._of(kind)[record_id]

    async def update(self, kind: type[R], record_id: str, change: Callable[[R], R]) -> R:
        records = self._of(kind)
        old = await self.get(kind, record_id)
        new = old.updated(change(old))
        others = {_unique(one) for one in records.values() if one.id != record_id}
        if _unique(new) in others:
            raise Conflict("taken")
        self._require_group(new)
        records[record_id] = new
        if isinstance(new, Tenant) and new.disabled:
            self._drop_responses_of(new.id)
        return new

    async def delete(self, kind: type[D], record_id: str) -> None:
        gone = await self.get(kind, record_id)
        if gone.id in self._groups_in_use():
            raise Conflict("has members")
        del self._of(kind)[gone.id]
        for key in [key for key in self.keys.values() if key.tenant_id == gone.id]:
            del self.keys[key.id]
        self._drop_responses_of(gone.id)
        self.module_schemas.pop(gone.id, None)

    async def keep_schema(self, schema: ModuleSchema) -> ModuleSchema:
        if (await self.get(Tenant, schema.tenant_id)).disabled:
            raise NotFound("no such tenant")
        ours = self.module_schemas.setdefault(schema.tenant_id, {})
        if schema.id not in ours and len(ours) >= MOST_SCHEMAS:
            raise Conflict("too many")
        return ours.setdefault(schema.id, schema)

    async def find_schema(self, tenant_id: str, schema_id: str) -> ModuleSchema:
        ours = self.module_schemas.get(tenant_id, {})
        if schema_id not in ours:
            raise NotFound("no such schema")
        return ours[schema_id]

    async def schema_ids(self, tenant_id: str) -> list[str]:
        return [*self.module_schemas.get(tenant_id, {})]

    async def drop_schema(self, tenant_id: str, schema_id: str) -> None:
        await self.find_schema(tenant_id, schema_id)
        del self.module_schemas[tenant_id][schema_id]

    async def list_keys(self, tenant_id: str) -> list[ApiKey]:
        await self.get(Tenant, tenant_id)
        return [key for key in await self.every(ApiKey) if key.tenant_id == tenant_id]

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        self.lookups += 1
        for key in self.keys.values():
            if key.digest == digest:
                return key, self.tenants[key.tenant_id]
        return None

    async def keep_response(self, response: StoredResponse, room: ResponseRoom) -> bool:
        size = len(msgspec.json.encode(response))
        if not room.has_room_for(size):
            return False
        if (await self.get(Tenant, response.tenant_id)).disabled:
            raise NotFound("no such tenant")
        place = (response.tenant_id, response.id)
        if place in self.responses:
            raise Conflict("taken")
        self.responses[place] = (response, size)
        while self._bytes()[response.tenant_id] > room.of_tenant:
            self._drop_oldest(response.tenant_id)
        while self._bytes().total() > room.of_all:
            [(heaviest, _)] = self._bytes().most_common(1)
            self._drop_oldest(heaviest)
        return True

    async def find_response(
        self, tenant_id: str, response_id: str, *, now: float
    ) -> StoredResponse:
        found = self.responses.get((tenant_id, response_id))
        if found is None or found[0].expires_at <= now:
            raise NotFound("no such response")
        return found[0]

    async def replace_response(self, response: StoredResponse, *, now: float) -> None:
        await self.find_response(response.tenant_id, response.id, now=now)
        size = len(msgspec.json.encode(response))
        self.responses[response.tenant_id, response.id] = (response, size)

    async def response_ids(self, tenant_id: str, beginning: str, *, now: float | None) -> list[str]:
        own = [one for (whose, _), (one, _) in self.responses.items() if whose == tenant_id]
        named = [one for one in own if one.id.startswith(beginning)]
        live = [one for one in named if now is None or one.expires_at > now]
        return [one.id for one in sorted(live, key=lambda one: one.created_at)]

    async def drop_response(self, tenant_id: str, response_id: str, *, now: float) -> None:
        await self.find_response(tenant_id, response_id, now=now)
        del self.responses[tenant_id, response_id]

    async def count_responses(self, tenant_id: str) -> int:
        return sum(tenant == tenant_id for tenant, _ in self.responses)

    async def drop_expired_responses(self, *, now: float) -> None:
        kept = {place: one for place, one in self.responses.items() if one[0].expires_at > now}
        self.responses = kept

    async def add_usage(self, rows: Sequence[UsageRow], *, batch: str) -> None:
        if batch in self.batches:
            return
        self.batches.append(batch)
        for row in rows:
            place = (row.day, row.tenant_id, row.key_id)
            self.counters[place] = self.counters.get(place, Counters()).plus(row.counters)

    async def usage(
        self,
        first_day: str,
        last_day: str,
        *,
        tenant_id: str | None = None,
        key_id: str | None = None,
    ) -> list[UsageRow]:
        return [
            UsageRow(day=day, tenant_id=tenant, key_id=key, counters=counters)
            for (day, tenant, key), counters in sorted(self.counters.items(), key=lambda i: i[0])
            if first_day <= day <= last_day
            and tenant_id in (None, tenant)
            and key_id in (None, key)
        ]

    async def append_audit(self, entry: AuditEntry) -> None:
        self.audit_log.append(entry)

    async def keep_isolation_report(self, report: IsolationReport) -> None:
        self.report = report

    async def isolation_report(self) -> IsolationReport | None:
        return self.report

    async def register_engine(self, engine: RegisteredEngine) -> None:
        before = self.engines.get(engine.address, engine)
        self.engines[engine.address] = replace(engine, added_at=before.added_at)

    async def forget_engine(self, address: str) -> None:
        if self.engines.pop(address, None) is None:
            raise NotFound("no such engine")

    async def registered_engines(self) -> list[RegisteredEngine]:
        return [self.engines[address] for address in sorted(self.engines)]

    async def add_flush(self, flush: CacheFlush) -> None:
        if flush.tenant_id is None:
            self.flushed.clear()
        self.flushed[flush.tenant_id] = flush

    async def fold_flushes(self, into: CacheFlush, tenant_ids: Sequence[str]) -> None:
        before = self.flushed.get(None)
        if before is None or before.at <= into.at:
            for one in tenant_ids:
                self.flushed.pop(one, None)
            self.flushed[None] = into

    async def flushes(self) -> list[CacheFlush]:
        return sorted(self.flushed.values(), key=lambda flush: flush.at)

    async def list_audit(self, *, limit: int, skip: int = 0) -> list[AuditEntry]:
        return self.audit_log[::-1][skip : skip + limit]

    async def close(self) -> None:
        return None

    def _of(self, kind: type[R]) -> dict[str, R]:
        places: dict[Any, Any] = {
            Tenant: self.tenants,
            ApiKey: self.keys,
            Group: self.groups,
            PublishedPrefix: self.prefixes,
        }
        found: dict[str, R] = places[kind]
        return found

    def _bytes(self) -> Counter[str]:
        held: Counter[str] = Counter()
        for (tenant_id, _), (_, size) in self.responses.items():
            held[tenant_id] += size
        return held

    def _drop_oldest(self, tenant_id: str) -> None:
        theirs = [one for (whose, _), (one, _) in self.responses.items() if whose == tenant_id]
        oldest = min(theirs, key=lambda one: one.created_at)
        del self.responses[tenant_id, oldest.id]

    def _drop_responses_of(self, tenant_id: str) -> None:
        for place in [place for place in self.responses if place[0] == tenant_id]:
            del self.responses[place]

    def _groups_in_use(self) -> set[str | None]:
        prefixes = {p.group_id for p in self.prefixes.values() if p.deleted_at is None}
        return {tenant.group_id for tenant in self.tenants.values()} | prefixes

    def _require_group(self, record: Record) -> None:
        group_id = record.group_id if isinstance(record, Tenant | PublishedPrefix) else None
        if group_id is not None and group_id not in self.groups:
            raise NotFound("no such group")


def _unique(record: Record) -> object:
    if isinstance(record, ApiKey):
        return record.digest
    return (record.name, record.version) if isinstance(record, PublishedPrefix) else record.name
