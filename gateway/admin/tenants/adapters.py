"""`/admin/tenants/{id}/adapters`: load, list and drop the LoRA adapters of a tenant.

Elsewhere: how an adapter is loaded (`gateway.sharing.adapters`).
"""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Response
from pydantic import Field

from gateway.admin.audit import AuditTrail
from gateway.http.admin_json import AdminBody, json_response, sent
from gateway.http.openapi import described
from gateway.sharing.adapters import TenantAdapters
from gateway.state.records import Tenant
from gateway.state.store import Records
from gateway.tenant_adapters import NAME_PATTERN, TenantAdapter


class NewAdapter(AdminBody):
    """Body of POST /admin/tenants/{id}/adapters. `path` is below the engines' adapter folder."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    path: Annotated[str, Field(min_length=1, max_length=1024)]


class AdapterList(msgspec.Struct, frozen=True):
    """The adapters of a tenant."""

    adapters: list[TenantAdapter]


class DroppedAdapter(msgspec.Struct, frozen=True):
    """The dropped adapter. `flushed_blocks` is None if no engine answered."""

    name: str
    flushed_blocks: int | None


def adapters_router(store: Records, adapters: TenantAdapters, audit: AuditTrail) -> APIRouter:
    """Serve the routes of adapters. `admin_router` guards them with the operator's key."""
    router = APIRouter(prefix="/admin/tenants/{tenant_id}/adapters")

    @router.post(
        "", openapi_extra=described(TenantAdapter, NewAdapter, statuses=(201,)), status_code=201
    )
    async def load(
        tenant_id: str, body: Annotated[NewAdapter, Depends(sent(NewAdapter))]
    ) -> Response:
        made = await adapters.load(tenant_id, body.name, body.path)
        await audit.note("adapter.load", tenant_id, name=made.name, digest=made.digest)
        return json_response(made, 201)

    @router.get("", openapi_extra=described(AdapterList))
    async def list_all(tenant_id: str) -> Response:
        return json_response(AdapterList([*(await store.get(Tenant, tenant_id)).adapters]))

    @router.delete("/{name:path}", openapi_extra=described(DroppedAdapter))
    async def drop(tenant_id: str, name: str) -> Response:
        blocks = await adapters.drop(tenant_id, name)
        await audit.note("adapter.drop", tenant_id, name=name)
        return json_response(DroppedAdapter(name, blocks))

    return router
