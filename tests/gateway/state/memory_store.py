"""The plainest home of the state: two dictionaries. The contract holds for it as well, so it can
stand in for any other home and serve as the model of random tests.
"""

from __future__ import annotations

from msgspec.structs import replace

from gateway.errors import Conflict, NotFound
from gateway.state.records import ApiKey, Tenant


class MemoryStore:
    """Implements `gateway.state.store.Store`; `lookups` counts calls of find_by_digest."""

    def __init__(self) -> None:
        self.tenants: dict[str, Tenant] = {}
        self.keys: dict[str, ApiKey] = {}
        self.lookups = 0

    async def create_tenant(self, tenant: Tenant) -> None:
        if tenant.id in self.tenants or self._has_name(tenant.name):
            raise Conflict("taken")
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
        old = await self.get_key(key.id)
        revoked_at = key.revoked_at if old.revoked_at is None else old.revoked_at
        self.keys[key.id] = replace(old, expires_at=key.expires_at, revoked_at=revoked_at)

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        self.lookups += 1
        for key in self.keys.values():
            if key.digest == digest:
                return key, self.tenants[key.tenant_id]
        return None

    async def close(self) -> None:
        return None

    def _has_name(self, name: str) -> bool:
        return any(tenant.name == name for tenant in self.tenants.values())
