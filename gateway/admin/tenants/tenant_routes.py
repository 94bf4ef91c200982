"""`/admin/tenants` and `/admin/groups`: create, list, change, disable, delete tenants and groups.

A group consists of tenants that trust each other. Membership is a field of the tenant, which is in
one group at most. If a tenant is disabled or deleted, or its group changes, its cached prefixes are
dropped. This is done before the answer is sent. Otherwise the tenant could watch who later uses the
blocks that it wrote for its group. Other gateways learn of the change later. Blocks of requests
that they admit until then are dropped after GROUP_KNOWN_S. This flush is recorded before the
change, so that any gateway can carry out the flush. A change is applied to the record as it is
stored at that moment. Two simultaneous changes therefore do not undo each other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Protocol

import msgspec
from fastapi import APIRouter, Depends, Response
from msgspec.structs import replace
from pydantic import Field

from engine.link.messages import Priority
from gateway.admin.audit import AuditTrail
from gateway.auth.keyring import Keyring
from gateway.auth.running_requests import GROUP_KNOWN_S
from gateway.http.admin_json import AdminBody, Name, json_response, left_out, sent
from gateway.http.openapi import described
from gateway.http.struct_field import StructField
from gateway.receipts.erasing import Erasing
from gateway.sharing.flushing import Flushing
from gateway.sharing.partitions import Partitions
from gateway.state.records import ErasedTenant, Group, Tenant
from gateway.state.store import Records, ResponseStore, SchemaStore
from gateway.tenant_adapters import MOST_ADAPTERS
from gateway.tenant_limits import CacheQuota, Limits

Weight = Annotated[float, Field(ge=0.001, le=1000)]
OwnAdapters = Annotated[int, Field(ge=0, le=MOST_ADAPTERS)]
TargetMs = Annotated[float, Field(ge=0, le=60_000)]
SentLimits = Annotated[Limits, StructField(Limits)]
SentQuota = Annotated[CacheQuota, StructField(CacheQuota)]


class NewTenant(AdminBody):
    """Body of POST /admin/tenants."""

    name: Name
    weight: Weight = 1.0
    group_id: str | None = None
    priority: Priority = "interactive"
    target_itl_ms: TargetMs = 0.0
    limits: SentLimits = Field(default_factory=Limits, json_schema_extra={"default": {}})
    cache: SentQuota = Field(default_factory=CacheQuota, json_schema_extra={"default": {}})
    usage_tiers: bool = False
    canonical_prompts: bool = False
    max_own_adapters: OwnAdapters = 0

    def made(self, created_at: float) -> Tenant:
        """Make the tenant that the body describes."""
        return replace(Tenant.new(self.name, created_at=created_at), **dict(self))


class TenantChange(AdminBody):
    """Body of PATCH /admin/tenants/{id}. Absent fields stay as they are."""

    name: Name = left_out()
    disabled: bool = left_out()
    weight: Weight = left_out()
    group_id: str | None = left_out()  # None: the tenant leaves its group
    priority: Priority = left_out()
    target_itl_ms: TargetMs = left_out()
    # replaces all limits of the tenant; an absent limit is removed
    limits: SentLimits = left_out()
    cache: SentQuota = left_out()  # replaces both floor and ceiling
    usage_tiers: bool = left_out()
    canonical_prompts: bool = left_out()
    max_own_adapters: OwnAdapters = left_out()

    def applied_to(self, tenant: Tenant) -> Tenant:
        """Return `tenant` with the body's fields."""
        return replace(tenant, **self.given())


class TenantList(msgspec.Struct, frozen=True):
    """Answer of GET /admin/tenants."""

    tenants: list[Tenant]


class Deleted(msgspec.Struct, frozen=True):
    """The deleted tenant. `flushed_blocks` is None if no engine answered.

    `awaited` names engines that forget the tenant later.
    """

    id: str
    flushed_blocks: int | None
    awaited: list[str]


class TenantState(Records, ResponseStore, SchemaStore, Protocol):
    """The parts of the state that a tenant's routes need."""


@dataclass(frozen=True, slots=True)
class _Tenants:
    store: TenantState
    keyring: Keyring
    flushing: Flushing
    erasing: Erasing
    audit: AuditTrail
    partitions: Partitions

    async def create(self, tenant: Tenant) -> None:
        await self.store.create(tenant)
        await self.audit.note("tenant.create", tenant.id, name=tenant.name)
        await self.partitions.changed()

    async def change(self, tenant_id: str, change: TenantChange) -> Tenant:
        before = await self.store.get(Tenant, tenant_id)
        if before.group_id not in (None, change.applied_to(before).group_id):
            await self.flushing.record(tenant_id, GROUP_KNOWN_S)
        after = await self.store.update(Tenant, tenant_id, change.applied_to)
        self.keyring.forget(tenant_id)
        await self.audit.note("tenant.update", tenant_id, **change.given())
        if after.disabled or after.group_id != before.group_id:
            await self.erasing.drop(tenant_id, again=after.disabled)
        await self.partitions.changed()
        return after

    async def delete(self, tenant_id: str) -> Deleted:
        of = await self._erased(tenant_id)
        flush = await self.erasing.record(
            of
        )  # recorded before the deletion, so that the erasure is done even if this process ends
        await self.store.delete(Tenant, tenant_id)
        self.keyring.forget(tenant_id)
        await self.audit.note("tenant.delete", tenant_id)
        flushed = await self.erasing.erase(flush)
        await self.partitions.changed()
        return Deleted(tenant_id, flushed.blocks, list(flushed.awaited))

    async def _erased(self, tenant_id: str) -> ErasedTenant:
        keys = len(await self.store.list_keys(tenant_id))
        responses = await self.store.count_responses(tenant_id)
        schemas = len(await self.store.schema_ids(tenant_id))
        # read last: a tenant that is still there was not deleted while its records were counted
        tenant = await self.store.get(Tenant, tenant_id)
        return ErasedTenant(
            id=tenant_id,
            name=tenant.name,
            keys=keys,
            responses=responses,
            schemas=schemas,
            adapters=len(tenant.adapters),
        )


def tenants_router(
    store: TenantState,
    keyring: Keyring,
    flushing: Flushing,
    erasing: Erasing,
    audit: AuditTrail,
    partitions: Partitions,
    clock: Callable[[], float],
) -> APIRouter:
    """Serve the routes below `/admin/tenants`. `admin_router` guards the routes."""
    router = APIRouter(prefix="/admin/tenants")
    tenants = _Tenants(store, keyring, flushing, erasing, audit, partitions)

    @router.post("", openapi_extra=described(Tenant, NewTenant, statuses=(201,)), status_code=201)
    async def create(body: Annotated[NewTenant, Depends(sent(NewTenant))]) -> Response:
        tenant = body.made(clock())
        await tenants.create(tenant)
        return json_response(tenant, 201)

    @router.get("", openapi_extra=described(TenantList))
    async def list_all() -> Response:
        return json_response(TenantList(await store.every(Tenant)))

    @router.get("/{tenant_id}", openapi_extra=described(Tenant))
    async def show(tenant_id: str) -> Response:
        return json_response(await store.get(Tenant, tenant_id))

    _add_changes(router, tenants)
    return router


def _add_changes(router: APIRouter, tenants: _Tenants) -> None:
    @router.patch("/{tenant_id}", openapi_extra=described(Tenant, TenantChange))
    async def change(
        tenant_id: str, body: Annotated[TenantChange, Depends(sent(TenantChange))]
    ) -> Response:
        return json_response(await tenants.change(tenant_id, body))

    @router.post("/{tenant_id}/disable", openapi_extra=described(Tenant))
    async def disable(tenant_id: str) -> Response:
        return json_response(await tenants.change(tenant_id, TenantChange(disabled=True)))

    @router.post("/{tenant_id}/enable", openapi_extra=described(Tenant))
    async def enable(tenant_id: str) -> Response:
        return json_response(await tenants.change(tenant_id, TenantChange(disabled=False)))

    @router.delete("/{tenant_id}", openapi_extra=described(Deleted))
    async def delete(tenant_id: str) -> Response:
        return json_response(await tenants.delete(tenant_id))


class NamedGroup(AdminBody):
    """Body of POST /admin/groups and of PATCH /admin/groups/{id}."""

    name: Name


SentGroup = Annotated[NamedGroup, Depends(sent(NamedGroup))]


class GroupList(msgspec.Struct, frozen=True):
    """Answer of GET /admin/groups."""

    groups: list[Group]


class DeletedGroup(msgspec.Struct, frozen=True):
    """The deleted group."""

    id: str


def groups_router(store: Records, audit: AuditTrail, clock: Callable[[], float]) -> APIRouter:
    """Serve the routes below `/admin/groups`. `admin_router` guards the routes."""
    router = APIRouter(prefix="/admin/groups")

    @router.post("", openapi_extra=described(Group, NamedGroup, statuses=(201,)), status_code=201)
    async def create(body: SentGroup) -> Response:
        group = Group.new(body.name, created_at=clock())
        await store.create(group)
        await audit.note("group.create", group.id, name=group.name)
        return json_response(group, 201)

    @router.get("", openapi_extra=described(GroupList))
    async def list_all() -> Response:
        return json_response(GroupList(await store.every(Group)))

    @router.get("/{group_id}", openapi_extra=described(Group))
    async def show(group_id: str) -> Response:
        return json_response(await store.get(Group, group_id))

    @router.patch("/{group_id}", openapi_extra=described(Group, NamedGroup))
    async def rename(group_id: str, body: SentGroup) -> Response:
        group = await store.update(Group, group_id, lambda one: replace(one, name=body.name))
        await audit.note("group.update", group_id, name=group.name)
        return json_response(group)

    @router.delete("/{group_id}", openapi_extra=described(DeletedGroup))
    async def delete(group_id: str) -> Response:
        await store.delete(Group, group_id)
        await audit.note("group.delete", group_id)
        return json_response(DeletedGroup(group_id))

    return router
