"""The pages' routes: `/admin/ui` and `/admin/session` for the operator, `/usage` for a tenant.

Files are served without a key. A browser signs in by sending a key once, for which it gets a
cookie. Every admin route accepts the operator's cookie (`gateway.auth.auth`). Only `/usage/data`
accepts a tenant's cookie. Only the pages use these routes, so `/openapi.json` omits them.
"""

import asyncio
import time
from functools import partial

import msgspec
from fastapi import APIRouter, Request, Response

from gateway.auth.auth import AdminAuthenticator
from gateway.auth.keyring import Keyring
from gateway.caller import Caller
from gateway.errors import Unauthenticated
from gateway.http.admin_json import json_response
from gateway.http.body_memory import OPERATOR
from gateway.http.request_head import tell_owner
from gateway.overview.known import Known
from gateway.page.files import PageFiles
from gateway.page.sessions import Session, Sessions
from gateway.page.signing_in import SignInParts
from gateway.page.usage import WhoseUsage, usage_data
from gateway.processes.tenant_turns import seen_out
from gateway.state.records import Tenant
from gateway.state.store import Store
from gateway.usage.reports import Reports
from gateway.usage.routes import days_of


class SignedIn(msgspec.Struct, frozen=True):
    """A signed-in browser's CSRF token, and the end of its session in seconds since the epoch."""

    csrf: str
    expires_at: float


def operator_page_router(
    parts: SignInParts, operator: AdminAuthenticator, sessions: Sessions
) -> APIRouter:
    """Serve `/admin/ui` and `/admin/session`."""
    router = APIRouter(include_in_schema=False)

    @router.post("/admin/session")
    async def sign_in(request: Request) -> Response:
        key = await parts.key(request)
        try:
            operator.check(key)
        except Unauthenticated:
            await parts.refuse()
            raise
        tell_owner(request.scope, OPERATOR)
        return sessions.begin("operator", request, _signed_in)

    @router.get("/admin/session")
    async def session(request: Request) -> Response:
        return _signed_in(sessions.of(request))

    @router.delete("/admin/session", status_code=204)
    async def sign_out(request: Request) -> Response:
        sessions.of(request)
        return sessions.end(Response(status_code=204))

    _add_files(router, "/admin/ui", "index.html", parts.files)
    return router


def usage_page_router(
    parts: SignInParts,
    keyring: Keyring,
    sessions: Sessions,
    store: Store,
    known: Known,
    reports: Reports,
) -> APIRouter:
    """Serve `/usage` and all paths below it. A session ends with its key."""
    router = APIRouter(include_in_schema=False)

    async def caller_of(request: Request) -> Caller:
        caller = await keyring.check(bytes.fromhex(sessions.of(request).subject))
        tell_owner(request.scope, caller.tenant_id)
        return caller

    @router.post("/usage/session")
    async def sign_in(request: Request) -> Response:
        key = await parts.key(request)
        try:
            caller = await keyring.identify(key)
        except Unauthenticated:
            await parts.refuse()
            raise
        tell_owner(request.scope, caller.tenant_id)
        await known.misses(caller.tenant_id)  # called so that workers look for misses from now on
        return sessions.begin(keyring.digest(key).hex(), request, _signed_in)

    @router.get("/usage/session")
    async def session(request: Request) -> Response:
        await caller_of(request)
        return _signed_in(sessions.of(request))

    @router.delete("/usage/session", status_code=204)
    async def sign_out(request: Request) -> Response:
        sessions.of(request)
        return sessions.end(Response(status_code=204))

    @router.get("/usage/data")
    async def data(request: Request) -> Response:
        caller = await caller_of(request)
        days = days_of(None, None, time.time())

        async def made() -> Response:
            tenant = await store.get(Tenant, caller.tenant_id)
            rows = await store.usage(*days, tenant_id=tenant.id, key_id=None)
            whose = WhoseUsage(tenant.id, tenant.name)
            misses = await known.misses(tenant.id)
            shown = partial(usage_data, whose, days, rows, misses, caller.limits)
            return json_response(await seen_out(asyncio.to_thread(shown)))

        return await reports.answer(request, made)

    _add_files(router, "/usage", "usage.html", parts.files)
    return router


def _add_files(router: APIRouter, path: str, first: str, files: PageFiles) -> None:
    """Add the page at `path` and its files. Call it last, since it takes all paths below."""

    @router.get(path)
    async def page(request: Request) -> Response:
        return files.answer(first, request)

    @router.get(path + "/{file:path}")
    async def file(file: str, request: Request) -> Response:
        return files.answer(file, request)


def _signed_in(session: Session) -> Response:
    return json_response(SignedIn(session.csrf, session.expires_at))
