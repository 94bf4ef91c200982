"""The routes of Anthropic's dialect.

Elsewhere: how a request is read (`reading.py`).
"""
# `from __future__ import annotations` would break FastAPI: it evaluates the handlers' annotations,
# which name the local variable `permitted`.

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from gateway.dialects.anthropic.limit_headers import limit_headers
from gateway.dialects.anthropic.reading import MessagesReader
from gateway.dialects.anthropic.replies import MessageReply, StreamEvent, TokenCount
from gateway.dialects.anthropic.schema import MessagesRequest, PromptRequest
from gateway.dialects.dialect import RouteParts
from gateway.dialects.dialect_request import json_response
from gateway.http.direct import direct
from gateway.http.openapi import described
from gateway.requests.permits import Permit


def messages_router(parts: RouteParts) -> APIRouter:
    """Return a router with all routes of the dialect."""
    router = APIRouter()
    answering = parts.answering
    reader = MessagesReader.of(parts)
    PermitOf = Annotated[Permit, Depends(parts.permitted())]

    @direct(
        router,
        "/v1/messages",
        parts.guard(),
        described(MessageReply, MessagesRequest, event=StreamEvent),
    )
    async def messages(request: Request, permit: Permit) -> Response:
        asked, stream = await reader.messages(request, permit)
        return await asked.respond(answering, stream=stream)

    @router.post("/v1/messages/count_tokens", openapi_extra=described(TokenCount, PromptRequest))
    async def count_tokens(request: Request, permit: PermitOf) -> Response:
        prompt, modules, salt = await reader.prompt(request, permit)
        count = answering.admission.count
        counted = TokenCount(await count(prompt, permit.caller, modules, salt, permit.body))
        await permit.give_back()
        return json_response(msgspec.json.encode(counted), limit_headers(permit.standing))

    return router
