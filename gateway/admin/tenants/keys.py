"""`/admin/tenants/{id}/keys`: issue, list, rotate and revoke a tenant's keys.

A key itself is only in the answer that issued it, and is stored nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Response
from pydantic import Field

from gateway.admin.audit import AuditTrail
from gateway.auth.keyring import IssuedKey, Keyring
from gateway.errors import BadRequest, NotFound
from gateway.http.admin_json import AdminBody, json_response, sent
from gateway.http.openapi import described
from gateway.state.records import ApiKey
from gateway.state.store import Store
from gateway.views import view_of

MAX_OVERLAP_S = 30 * 24 * 3600.0
MAX_EPOCH_S = 253_402_300_800.0  # the year 10000


class NewKey(AdminBody):
    """Body of POST .../keys. `expires_at` is in epoch seconds; None means never."""

    expires_at: Annotated[float, Field(ge=0, le=MAX_EPOCH_S)] | None = None


class Rotation(AdminBody):
    """Body of POST .../rotate: the seconds for which the old key stays valid."""

    overlap_s: Annotated[float, Field(ge=0, le=MAX_OVERLAP_S)] = 0.0


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """The public part of a key's record, without the key itself."""

    id: str
    tenant_id: str
    hint: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    live: bool

    @classmethod
    def of(cls, key: ApiKey, now: float) -> KeyView:
        """Make the view of `key` at the time `now`, which decides whether the key has expired."""
        return view_of(cls, key, expires_at=key.ends_at, live=key.is_live(now))


class IssuedView(msgspec.Struct, frozen=True, kw_only=True):
    """The key in clear, shown only this time, and its record."""

    key: str
    record: KeyView


class KeyList(msgspec.Struct, frozen=True):
    """Answer of GET .../keys."""

    keys: list[KeyView]


def keys_router(
    store: Store, keyring: Keyring, audit: AuditTrail, clock: Callable[[], float]
) -> APIRouter:
    """Serve the routes below `/admin/tenants/{id}/keys`. `admin_router` guards the routes."""
    router = APIRouter(prefix="/admin/tenants/{tenant_id}/keys")

    def shown(issued: IssuedKey) -> Response:
        view = IssuedView(key=issued.secret, record=KeyView.of(issued.record, clock()))
        return json_response(view, 201)

    @router.post("", openapi_extra=described(IssuedView, NewKey, statuses=(201,)), status_code=201)
    async def issue(tenant_id: str, body: Annotated[NewKey, Depends(sent(NewKey))]) -> Response:
        if body.expires_at is not None and body.expires_at <= clock():
            raise BadRequest("`expires_at` is in the past", param="expires_at")
        issued = await keyring.issue(tenant_id, expires_at=body.expires_at)
        await audit.note("key.create", issued.record.id, tenant=tenant_id)
        return shown(issued)

    @router.get("", openapi_extra=described(KeyList))
    async def list_all(tenant_id: str) -> Response:
        now = clock()
        keys = await store.list_keys(tenant_id)
        return json_response(KeyList([KeyView.of(key, now) for key in keys]))

    @router.post(
        "/{key_id}/rotate",
        openapi_extra=described(IssuedView, Rotation, statuses=(201,)),
        status_code=201,
    )
    async def rotate(
        tenant_id: str, key_id: str, body: Annotated[Rotation, Depends(sent(Rotation))]
    ) -> Response:
        await _require_owner(store, tenant_id, key_id)
        issued = await keyring.rotate(key_id, overlap_s=body.overlap_s)
        await audit.note("key.rotate", key_id, tenant=tenant_id, successor=issued.record.id)
        return shown(issued)

    @router.delete("/{key_id}", openapi_extra=described(KeyView))
    async def revoke(tenant_id: str, key_id: str) -> Response:
        await _require_owner(store, tenant_id, key_id)
        await keyring.revoke(key_id)
        await audit.note("key.revoke", key_id, tenant=tenant_id)
        return json_response(KeyView.of(await store.get(ApiKey, key_id), clock()))

    return router


async def _require_owner(store: Store, tenant_id: str, key_id: str) -> None:
    if (await store.get(ApiKey, key_id)).tenant_id != tenant_id:
        raise NotFound("no such key")
