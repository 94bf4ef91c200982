"""The routes of `cachedContents`, which create, show, renew and delete cached contents.

Elsewhere: how a content is computed (`creating.py`).
"""
# `from __future__ import annotations` would break FastAPI: it evaluates the handlers' annotations,
# which name the local variable `permitted`.

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from gateway.dialects.dialect import RouteParts
from gateway.dialects.dialect_request import json_response
from gateway.dialects.gemini.cached_schema import (
    CachedContent,
    CachedContentList,
    CachedContentRequest,
    Expiry,
    Nothing,
)
from gateway.dialects.gemini.creating import CachedContentWriter
from gateway.dialects.gemini.reading import GeminiReader
from gateway.http.openapi import described
from gateway.http.request_head import until_gone
from gateway.requests.permits import Permit


def add_cached_contents(
    router: APIRouter, parts: RouteParts, reader: GeminiReader, path: str
) -> None:
    """Add the routes of cached contents at `path` and below it."""
    PermitOf = Annotated[Permit, Depends(parts.permitted())]
    contents = reader.contents
    writer = CachedContentWriter(parts, reader, contents)

    @router.post(path, openapi_extra=described(CachedContent, CachedContentRequest))
    async def create_cached_content(request: Request, permit: PermitOf) -> Response:
        found = await until_gone(request.receive, writer.create(request, permit))
        return await _replied(found.shown(), permit)

    @router.get(path, openapi_extra=described(CachedContentList))
    async def list_cached_contents(
        permit: PermitOf,
        pageSize: Annotated[int | None, Query(ge=0)] = None,
        pageToken: Annotated[str | None, Query(pattern="^[0-9]{0,8}$")] = None,
    ) -> Response:
        tenant_id = permit.caller.tenant_id
        return await _replied(
            await contents.page(tenant_id, pageSize, pageToken, permit.body), permit
        )

    @router.get(f"{path}/{{id}}", openapi_extra=described(CachedContent))
    async def show_cached_content(id: str, permit: PermitOf) -> Response:  # noqa: A002 (in the path)
        found = await contents.find(permit.caller.tenant_id, id, permit.body)
        return await _replied(found.shown(), permit)

    @router.patch(f"{path}/{{id}}", openapi_extra=described(CachedContent, Expiry))
    async def update_cached_content(
        id: str,  # noqa: A002 (in the path)
        request: Request,
        permit: PermitOf,
    ) -> Response:
        found = await until_gone(request.receive, writer.renew(request, permit, id))
        return await _replied(found.shown(), permit)

    @router.delete(f"{path}/{{id}}", openapi_extra=described(Nothing))
    async def delete_cached_content(
        id: str,  # noqa: A002 (in the path)
        request: Request,
        permit: PermitOf,
    ) -> Response:
        await writer.delete(request, permit, id)
        return await _replied(Nothing(), permit)


async def _replied(shown: msgspec.Struct, permit: Permit) -> Response:
    await permit.give_back()
    return json_response(msgspec.json.encode(shown))
