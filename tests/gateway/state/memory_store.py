"""The plainest home of the state: dictionaries. The contract holds for it as well, so it can
stand in for any other home and serve as the model of random tests.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import Conflict, NotFound
from gateway.state.records import (
    ApiKey,
    AuditEntry,
    Counters,
    Group,
    PublishedPrefix,
    Tenant,
    UsageRow,
)


class MemoryStore:
    """Implements `gateway.state.store.Store`; `lookups` counts calls of find_by_digest."""

    def __init__(self) -> None:
        self.tenants: dict[str, Tenant] = {}
        self.keys: dict[str, ApiKey] = {}
        self.groups: dict[str, Group] = {}
        self.prefixes: dict[str, PublishedPrefix] = {}
        self.counters: dict[tuple[str, str, str], Counters] = {}
        self.batches: list[str] = []
        self.audit_log: list[AuditEntry] = []
        self.lookups = 0

    async def create_tenant(self, tenant: Tenant) -> None:
        if tenant.id in self.tenants or self._has_name(tenant.name):
            raise Conflict("taken")
        self._require_group(tenant.group_id)
        self.tenants[tenant.id] = tenant

    async def list_tenants(self) -> list[Tenant]:
        return sorted(self.tenants.values(), key=lambda tenant: tenant.created_at)

    async def get_tenant(self, tenant_id: str) -> Tenant:
        if tenant_id not in self.tenants:
            raise NotFound("no such tenant")
        return self.tenants[tenant_id]

    async def update_tenant(self, tenant: Tenant) -> None:
        old = await self.get_tenant(tenant.id)
        if tenant.name != old.name and self._has_name(tenant.name):
            raise Conflict("taken")
        self._require_group(tenant.group_id)
        self.tenants[tenant.id] = tenant

    async def delete_tenant(self, tenant_id: str) -> None:
        await self.get_tenant(tenant_id)
        del self.tenants[tenant_id]
        self.keys = {i: key for i, key in self.keys.items() if key.tenant_id != tenant_id}

    async def create_key(self, key: ApiKey) -> None:
        await self.get_tenant(key.tenant_id)
        if key.id in self.keys or any(key.digest == k.digest for k in self.keys.values()):
            raise Conflict("taken")
        self.keys[key.id] = key

    async def list_keys(self, tenant_id: str) -> list[ApiKey]:
        await self.get_tenant(tenant_id)
        mine = [key for key in self.keys.values() if key.tenant_id == tenant_id]
        return sorted(mine, key=lambda key: key.created_at)

    async def get_key(self, key_id: str) -> ApiKey:
        if key_id not in self.keys:
            raise NotFound("no such key")
        return self.keys[key_id]

    async def update_key(self, key: ApiKey) -> None:
        self.keys[key.id] = (await self.get_key(key.id)).updated(key)

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        self.lookups += 1
        for key in self.keys.values():
            if key.digest == digest:
                return key, self.tenants[key.tenant_id]
        return None

    async def create_group(self, group: Group) -> None:
        if group.id in self.groups or any(group.name == g.name for g in self.groups.values()):
            raise Conflict("taken")
        self.groups[group.id] = group

    async def list_groups(self) -> list[Group]:
        return sorted(self.groups.values(), key=lambda group: group.created_at)

    async def get_group(self, group_id: str) -> Group:
        self._require_group(group_id)
        return self.groups[group_id]

    async def update_group(self, group: Group) -> None:
        await self.get_group(group.id)
        if any(group.name == g.name and group.id != g.id for g in self.groups.values()):
            raise Conflict("taken")
        self.groups[group.id] = group

    async def delete_group(self, group_id: str) -> None:
        await self.get_group(group_id)
        tenants = {tenant.group_id for tenant in self.tenants.values()}
        prefixes = {p.group_id for p in self.prefixes.values() if p.deleted_at is None}
        if group_id in tenants | prefixes:
            raise Conflict("has members")
        del self.groups[group_id]

    async def create_prefix(self, prefix: PublishedPrefix) -> None:
        taken = {(old.name, old.version) for old in self.prefixes.values()}
        if prefix.id in self.prefixes or (prefix.name, prefix.version) in taken:
            raise Conflict("taken")
        self._require_group(prefix.group_id)
        self.prefixes[prefix.id] = prefix

    async def list_prefixes(self) -> list[PublishedPrefix]:
        return sorted(self.prefixes.values(), key=lambda prefix: prefix.created_at)

    async def get_prefix(self, prefix_id: str) -> PublishedPrefix:
        if prefix_id not in self.prefixes:
            raise NotFound("no such prefix")
        return self.prefixes[prefix_id]

    async def update_prefix(self, prefix: PublishedPrefix) -> None:
        self.prefixes[prefix.id] = (await self.get_prefix(prefix.id)).updated(prefix)

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

    async def list_audit(self, *, limit: int, skip: int = 0) -> list[AuditEntry]:
        return self.audit_log[::-1][skip : skip + limit]

    async def close(self) -> None:
        return None

    def _has_name(self, name: str) -> bool:
        return any(tenant.name == name for tenant in self.tenants.values())

    def _require_group(self, group_id: str | None) -> None:
        if group_id is not None and group_id not in self.groups:
            raise NotFound("no such group")
