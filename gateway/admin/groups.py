"""`/admin/groups`: make, list, rename and delete groups of tenants that trust each other.

Membership is a field of the tenant (`/admin/tenants`), which is in one group at most.

Knows: what a group is called. Does not know: what its members share.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec.structs import replace

from gateway.admin.audit import AuditTrail
from gateway.admin.wire import AdminBody, Name, clean_name, json_response, read_body
from gateway.openapi import described
from gateway.state.records import Group
from gateway.state.store import Groups


class NamedGroup(AdminBody, frozen=True, kw_only=True):
    """Body of POST /admin/groups and of PATCH /admin/groups/{id}."""

    name: Name


class GroupList(msgspec.Struct, frozen=True):
    """Answer of GET /admin/groups."""

    groups: list[Group]


class DeletedGroup(msgspec.Struct, frozen=True):
    """Answer of DELETE."""

    id: str


def groups_router(store: Groups, audit: AuditTrail, clock: Callable[[], float]) -> APIRouter:
    """The routes below `/admin/groups`, without their guard."""
    router = APIRouter(prefix="/admin/groups")

    @router.post("", openapi_extra=described(Group, NamedGroup, statuses=(201,)), status_code=201)
    async def create(request: Request) -> Response:
        body = await read_body(request, NamedGroup)
        group = Group.new(clean_name(body.name), created_at=clock())
        await store.create_group(group)
        await audit.note("group.create", group.id, name=group.name)
        return json_response(group, 201)

    @router.get("", openapi_extra=described(GroupList))
    async def list_all() -> Response:
        return json_response(GroupList(await store.list_groups()))

    @router.get("/{group_id}", openapi_extra=described(Group))
    async def show(group_id: str) -> Response:
        return json_response(await store.get_group(group_id))

    @router.patch("/{group_id}", openapi_extra=described(Group, NamedGroup))
    async def rename(group_id: str, request: Request) -> Response:
        body = await read_body(request, NamedGroup)
        group = replace(await store.get_group(group_id), name=clean_name(body.name))
        await store.update_group(group)
        await audit.note("group.update", group_id, name=group.name)
        return json_response(group)

    @router.delete("/{group_id}", openapi_extra=described(DeletedGroup))
    async def delete(group_id: str) -> Response:
        await store.delete_group(group_id)
        await audit.note("group.delete", group_id)
        return json_response(DeletedGroup(group_id))

    return router
