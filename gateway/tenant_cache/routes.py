"""The routes `/v1/cache`: probe a request, warm its prompt, list and delete marked prefixes.

The routes concern only the calling tenant's own prompts. A request is admitted as if it were sent,
so its namespaces are the caller's. Each route counts as a request, and warming is charged for its
prompt.

The engine answers queries between two steps, and reads all nodes of the prefixes. For many or long
prefixes this takes milliseconds, so a flood of free queries would delay the steps of all tenants.
Therefore each tenant may have one probe and one list or deletion at a time.

Elsewhere: how a request is read (`reader.py`).
"""
# `from __future__ import annotations` would break FastAPI: it evaluates the handlers' annotations,
# which name the local variable `permitted`.

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from engine.link.interface import Engine
from engine.link.query_messages import ForgetMarked, ListMarked, Probe
from gateway.dialects.dialect import RouteParts
from gateway.dialects.dialect_request import json_response
from gateway.dialects.finished_choice import gather
from gateway.dialects.openai_shape import limit_headers
from gateway.errors import BadRequest, NotFound
from gateway.http.openapi import described
from gateway.http.request_head import running_request, until_gone
from gateway.processes.tenant_turns import TenantTurns
from gateway.requests.permits import Permit
from gateway.tenant_cache.reader import RequestReader
from gateway.tenant_cache.views import (
    CachePrefix,
    CachePrefixDeleted,
    CachePrefixList,
    CacheProbe,
    CacheWarmed,
    RequestOf,
    prefix_id,
)
from gateway.views import TokensByTier

MOST_WAITING = 8  # maximum number of a tenant's lists and deletions that wait for their turn


def tenant_cache_router(parts: RouteParts) -> APIRouter:
    """Return a router with all routes of `/v1/cache`."""
    router = APIRouter(prefix="/v1/cache")
    engine = parts.card.engine
    _add_prompts(router, parts, engine, RequestReader.of(parts))
    _add_marked(router, parts, engine)
    return router


def _add_prompts(
    router: APIRouter, parts: RouteParts, engine: Engine, reader: RequestReader
) -> None:
    answering = parts.answering
    PermitOf = Annotated[Permit, Depends(parts.permitted())]
    turns = TenantTurns()

    @router.post("/probe", openapi_extra=described(CacheProbe, RequestOf))
    async def probe(request: Request, permit: PermitOf) -> Response:
        wanted = await reader.wanted(request, permit)
        if wanted.modules is not None:
            raise BadRequest("modules are not probed", param="body.ratoon.modules")
        admitted = await answering.admission.admit(wanted, permit.caller)
        [asked] = admitted.generates
        start = 0 if asked.adapter is None else asked.adapter.start
        probe = Probe(token_ids=asked.token_ids, namespaces=asked.namespaces, adapter_start=start)
        async with turns.of(permit.caller.tenant_id):
            found = await engine.ask(probe)
        tiers = TokensByTier.of(found.tiers, found.state_tier)
        shown = CacheProbe(
            prompt_tokens=admitted.prompt_tokens,
            cached_tokens=found.tiers.total,
            matched_tokens=found.matched or msgspec.UNSET,
            saved_ms=None if found.saved_seconds is None else 1000 * found.saved_seconds,
            tiers=tiers if permit.caller.sees_tiers else msgspec.UNSET,
        )
        return await _replied(shown, permit)

    @router.post("/warm", openapi_extra=described(CacheWarmed, RequestOf))
    async def warm(request: Request, permit: PermitOf) -> Response:
        wanted, scope = await reader.wanted(request, permit), request.scope

        async def computed() -> CacheWarmed:
            running = running_request(scope)
            async with answering.answer(
                wanted, scope["route"].path, running, permit, is_whole=True
            ) as answer:
                await gather(answer.events)
                used = answer.request_metrics.usage()
            return CacheWarmed(
                prompt_tokens=used.prompt_tokens,
                cached_tokens=used.cached_tokens,
                cache_write_tokens=sum(used.written),
            )

        shown = await until_gone(request.receive, computed())
        return json_response(msgspec.json.encode(shown), limit_headers(permit.standing))


def _add_marked(router: APIRouter, parts: RouteParts, engine: Engine) -> None:
    PermitOf = Annotated[Permit, Depends(parts.permitted())]
    turns = TenantTurns(MOST_WAITING)

    @router.get("/prefixes", openapi_extra=described(CachePrefixList))
    async def prefixes(permit: PermitOf) -> Response:
        async with turns.of(permit.caller.tenant_id):
            found = await engine.ask(ListMarked(flow=permit.caller.tenant_id))
        sees = permit.caller.sees_tiers
        data = [CachePrefix.of(one, sees_tiers=sees) for one in found.prefixes]
        return await _replied(CachePrefixList(data=data), permit)

    @router.delete("/prefixes/{id}", openapi_extra=described(CachePrefixDeleted))
    async def delete(id: str, permit: PermitOf) -> Response:  # noqa: A002 (the name in the path)
        key, blocks = prefix_id(id), None
        if key is not None:
            order = ForgetMarked(flow=permit.caller.tenant_id, prefix_id=key)
            async with turns.of(permit.caller.tenant_id):
                blocks = (await engine.ask(order)).blocks
        if blocks is None:
            raise NotFound("there is no marked prefix with this id; see /v1/cache/prefixes")
        size = (await parts.answering.admission.engine()).block_size
        return await _replied(CachePrefixDeleted(id=id, tokens=blocks * size), permit)


async def _replied(shown: msgspec.Struct, permit: Permit) -> Response:
    await permit.give_back()
    return json_response(msgspec.json.encode(shown), limit_headers(permit.standing))
