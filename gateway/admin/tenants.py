"""`/admin/tenants`: make, list, change, disable and delete tenants.

When a tenant is disabled or deleted, its cached prefixes and remembered identities are gone
before the answer is sent. Changes run one at a time, so that two changes to one tenant do not
undo each other.

Knows: which steps a change takes. Does not know: SQL, keys, or how the engine forgets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from engine.errors import EngineError
from engine.messages import Priority
from gateway.admin.audit import AuditTrail
from gateway.admin.bounded_engine import BoundedEngine
from gateway.admin.wire import AdminBody, Name, clean_name, json_response, read_body
from gateway.cache_quota import CacheQuota
from gateway.keyring import Keyring
from gateway.limits.limits import Limits
from gateway.openapi import described
from gateway.state.records import Tenant
from gateway.state.store import Store

Weight = Annotated[float, Meta(ge=0.001, le=1000)]


class NewTenant(AdminBody, frozen=True, kw_only=True):
    """Body of POST /admin/tenants."""

    name: Name
    weight: Weight = 1.0
    group_id: str | None = None
    priority: Priority = "interactive"
    limits: Limits = Limits()
    cache: CacheQuota = CacheQuota()

    def made(self, created_at: float) -> Tenant:
        """The tenant that is asked for; BadRequest for a bad name."""
        name = clean_name(self.name)
        new = Tenant.new(name, created_at=created_at, weight=self.weight, group_id=self.group_id)
        return replace(new, priority=self.priority, limits=self.limits, cache=self.cache)


class TenantChange(AdminBody, frozen=True, kw_only=True):
    """Body of PATCH /admin/tenants/{id}; fields that are left out stay."""

    name: Name | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET
    weight: Weight | UnsetType = UNSET
    group_id: str | UnsetType | None = UNSET  # None: it leaves its group
    priority: Priority | UnsetType = UNSET
    limits: Limits | UnsetType = UNSET  # replaces all limits: one that is left out is removed
    cache: CacheQuota | UnsetType = UNSET  # replaces both floor and ceiling

    def given(self) -> dict[str, Any]:
        """The fields that the body has."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in fields.items() if value is not UNSET}

    def applied_to(self, tenant: Tenant) -> Tenant:
        """`tenant` with the fields that the body has."""
        return replace(tenant, **self.given())


class TenantList(msgspec.Struct, frozen=True):
    """Answer of GET /admin/tenants."""

    tenants: list[Tenant]


class Deleted(msgspec.Struct, frozen=True):
    """Answer of DELETE. `flushed_blocks` is None when no engine answered."""

    id: str
    flushed_blocks: int | None


class TenantChanges:
    """The changes to tenants, one at a time, with everything that follows from them."""

    def __init__(
        self, store: Store, keyring: Keyring, engine: BoundedEngine, audit: AuditTrail
    ) -> None:
        self._store = store
        self._keyring = keyring
        self._engine = engine
        self._audit = audit
        self._turn = asyncio.Lock()

    async def change(self, tenant_id: str, change: TenantChange) -> Tenant:
        """Apply `change` and return the tenant as it is now."""
        async with self._turn:
            after = change.applied_to(await self._store.get_tenant(tenant_id))
            await self._store.update_tenant(after)
            self._keyring.forget(tenant_id)
            await self._audit.note("tenant.update", tenant_id, **change.given())
            if after.disabled:
                await self._flush(tenant_id)
            return after

    async def delete(self, tenant_id: str) -> Deleted:
        """Remove the tenant, its keys and its cached prefixes."""
        async with self._turn:
            await self._store.delete_tenant(tenant_id)
            self._keyring.forget(tenant_id)
            await self._audit.note("tenant.delete", tenant_id)
            return Deleted(tenant_id, await self._flush(tenant_id))

    async def _flush(self, tenant_id: str) -> int | None:
        """Forget the tenant's prefixes.

        Without an engine the change stands: what is left in the cache cannot be reached, because
        no request has the id that its namespace is derived from.
        """
        try:
            return await self._engine.flush(tenant_id)
        except EngineError:
            return None


def tenants_router(
    store: Store,
    keyring: Keyring,
    engine: BoundedEngine,
    audit: AuditTrail,
    clock: Callable[[], float],
) -> APIRouter:
    """The routes below `/admin/tenants`, without their guard."""
    router = APIRouter(prefix="/admin/tenants")
    changes = TenantChanges(store, keyring, engine, audit)

    @router.post("", openapi_extra=described(Tenant, NewTenant, statuses=(201,)), status_code=201)
    async def create(request: Request) -> Response:
        body = await read_body(request, NewTenant)
        tenant = body.made(clock())
        await store.create_tenant(tenant)
        await audit.note("tenant.create", tenant.id, name=tenant.name)
        return json_response(tenant, 201)

    @router.get("", openapi_extra=described(TenantList))
    async def list_all() -> Response:
        return json_response(TenantList(await store.list_tenants()))

    @router.get("/{tenant_id}", openapi_extra=described(Tenant))
    async def show(tenant_id: str) -> Response:
        return json_response(await store.get_tenant(tenant_id))

    @router.patch("/{tenant_id}", openapi_extra=described(Tenant, TenantChange))
    async def change(tenant_id: str, request: Request) -> Response:
        body = await read_body(request, TenantChange)
        if body.name is not UNSET:
            clean_name(body.name)
        return json_response(await changes.change(tenant_id, body))

    @router.post("/{tenant_id}/disable", openapi_extra=described(Tenant))
    async def disable(tenant_id: str) -> Response:
        return json_response(await changes.change(tenant_id, TenantChange(disabled=True)))

    @router.post("/{tenant_id}/enable", openapi_extra=described(Tenant))
    async def enable(tenant_id: str) -> Response:
        return json_response(await changes.change(tenant_id, TenantChange(disabled=False)))

    @router.delete("/{tenant_id}", openapi_extra=described(Deleted))
    async def delete(tenant_id: str) -> Response:
        return json_response(await changes.delete(tenant_id))

    return router
