"""The routes of the Responses API.

Elsewhere: which fields are stored (`stored.py`).
"""
# `from __future__ import annotations` would break FastAPI: it evaluates the handlers' annotations,
# which name the local variable `permitted`.

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from msgspec import Raw

from gateway.caller import Caller
from gateway.dialects.dialect import RouteParts
from gateway.dialects.dialect_request import (
    BYTES_PER_CHARACTER,
    DialectRequest,
    json_response,
    read_wire,
)
from gateway.dialects.finished_choice import FinishedChoice
from gateway.dialects.openai_shape import limit_headers
from gateway.dialects.responses.diagnostics import MissQuestions
from gateway.dialects.responses.events import ResponseEvent
from gateway.dialects.responses.listing import a_page
from gateway.dialects.responses.reader import ResponsesReader
from gateway.dialects.responses.reading import Understood
from gateway.dialects.responses.rendering import ResponseRendering
from gateway.dialects.responses.replies import (
    DeletedResponse,
    InputItemList,
    InputTokens,
    ResponseReply,
)
from gateway.dialects.responses.schema import ResponsesRequest
from gateway.dialects.responses.stored import Content, StoredResponses, listed
from gateway.errors import BadRequest, NotFound
from gateway.http.answers.whole_answer import answer_of, gathered, in_pieces
from gateway.http.body_memory import BodyMemory
from gateway.http.direct import direct
from gateway.http.openapi import described
from gateway.http.request_head import request_id_of, running_request, until_gone
from gateway.processes.fair_executor import Steps
from gateway.prompts.pipeline.admission import Admission
from gateway.requests.permits import Permit
from gateway.requests.request_usage import Usage

_REQUEST = msgspec.json.Decoder(ResponsesRequest)


def responses_router(parts: RouteParts) -> APIRouter:
    """Return a router with all routes of the dialect."""
    router = APIRouter(prefix="/v1/responses")
    stored = StoredResponses(parts.records)
    reader = ResponsesReader(parts, stored)
    creation = ResponsesCreation(reader, BodyMemory(parts.bounds))
    _add_creation(router, parts, creation)
    _add_counting(router, parts, creation)
    _add_stored(router, parts, stored)
    return router


@dataclass(frozen=True, slots=True)
class ResponsesCreation:
    """A reader of request bodies. `held` counts each response's memory until the response ends."""

    reader: ResponsesReader
    held: BodyMemory

    async def response(self, request: Request, permit: Permit) -> tuple[DialectRequest, bool]:
        """Read a Responses request; return the request, and whether its answer is a stream."""
        wire, asked = await self._understood(request, permit)
        begun = self._begun(asked)
        await self._hold(request, permit, begun, asked.items if begun.store else b"")
        wanted = asked.generation_request
        rendering = ResponseRendering(
            wanted.request_id,
            begun,
            asked.count,
            MissQuestions.of(wire),
            asked.calls,
            has_output=wanted.has_output,
        )
        admission = self.reader.parts.answering.admission
        stored = self.reader.stored
        keeping = Keeping(stored, permit.caller, admission, rendering, asked.items)
        dialect_request = DialectRequest(
            wanted,
            rendering,
            request,
            permit,
            ending=keeping.keep if rendering.is_stored else None,
            error_event=rendering.failed,
        )
        return dialect_request, bool(wire.stream)

    async def input_tokens(self, request: Request, permit: Permit) -> InputTokens:
        """Count a request's prompt tokens; raise the errors of `response` for a wrong body."""
        _, asked = await self._understood(request, permit)
        wanted, admission = asked.generation_request, self.reader.parts.answering.admission
        [prompt] = wanted.prompts
        return InputTokens(
            await admission.count(prompt, permit.caller, wanted.modules, wanted.salt, permit.body)
        )

    async def _understood(
        self, request: Request, permit: Permit
    ) -> tuple[ResponsesRequest, Understood]:
        parts = self.reader.parts
        wire = await read_wire(request, permit, _REQUEST, parts.bounds, parts.answering.admission)
        return wire, await self.reader.understood(wire, permit, request_id_of(request.scope))

    async def _hold(
        self, request: Request, permit: Permit, begun: ResponseReply, items: bytes
    ) -> None:
        at_end = running_request(request.scope).at_end
        lease = at_end.enter_context(self.held.lease(permit.caller.tenant_id))
        await lease.grow(len(items) + len(msgspec.json.encode(begun)))

    def _begun(self, asked: Understood) -> ResponseReply:
        """Return the response without output. `store` is false if the response cannot be stored."""
        bounds = self.reader.parts.bounds
        is_too_large = len(asked.items) > bounds.max_response_bytes
        if is_too_large or not bounds.response_ttl_s:
            return msgspec.structs.replace(asked.begun, store=False)
        return asked.begun


@dataclass(frozen=True, slots=True)
class Keeping:
    """A keeper of responses. It stores each response before the client gets the last event."""

    stored: StoredResponses
    caller: Caller
    admission: Admission
    rendering: ResponseRendering
    items: bytes

    async def keep(self, choices: Sequence[FinishedChoice], usage: Usage) -> None:
        """Store the response, and set whether `rendering` reports the response as stored."""
        work = sum(choice.work for choice in choices) + len(self.items) // BYTES_PER_CHARACTER
        reply_id, content = await self.admission.spell(
            self.caller, self._content(choices, usage), work
        )
        self.rendering.is_stored = await self.stored.keep(
            self.caller.tenant_id, reply_id, time.time(), content
        )

    def _content(
        self, choices: Sequence[FinishedChoice], usage: Usage
    ) -> Steps[tuple[str, Content]]:
        yield from ()
        self.rendering.take(choices)
        reply = self.rendering.finished(usage)
        return reply.id, Content(Raw(msgspec.json.encode(reply)), Raw(self.items))


def _add_creation(router: APIRouter, parts: RouteParts, creation: ResponsesCreation) -> None:
    @direct(
        router, "", parts.guard(), described(ResponseReply, ResponsesRequest, event=ResponseEvent)
    )
    async def create_response(request: Request, permit: Permit) -> Response:
        asked, stream = await creation.response(request, permit)
        return await asked.respond(parts.answering, stream=stream)


def _add_counting(router: APIRouter, parts: RouteParts, creation: ResponsesCreation) -> None:
    PermitOf = Annotated[Permit, Depends(parts.permitted())]

    @router.post("/input_tokens", openapi_extra=described(InputTokens, ResponsesRequest))
    async def count_input_tokens(request: Request, permit: PermitOf) -> Response:
        counted = await creation.input_tokens(request, permit)
        await permit.give_back()
        return json_response(msgspec.json.encode(counted), limit_headers(permit.standing))

    @router.post("/compact", include_in_schema=False)
    async def compact(permit: PermitOf) -> Response:
        del permit  # the permit only makes FastAPI refuse callers without a key
        raise NotFound(
            "nothing here compacts a conversation; ask for a summary of it with /v1/responses",
            code="unknown_url",
        )


def _add_stored(router: APIRouter, parts: RouteParts, stored: StoredResponses) -> None:
    PermitOf = Annotated[Permit, Depends(parts.permitted())]

    async def answered(body: bytes, permit: Permit, request: Request) -> Response:
        gathered(request.scope).grow(len(body))  # counted until the client has the body
        await asyncio.sleep(0)  # a request that exceeds the memory limit is cancelled here
        await permit.give_back()
        return await answer_of(in_pieces(body), limit_headers(permit.standing))

    @router.get("/{response_id}", openapi_extra=described(ResponseReply))
    async def show_response(
        response_id: str, permit: PermitOf, request: Request, stream: bool = False
    ) -> Response:
        finding = stored.find(permit.caller.tenant_id, response_id, permit.body)
        found = await until_gone(request.receive, finding)
        if stream:
            raise BadRequest(
                "a response that has ended is not streamed again",
                code="unsupported_parameter",
                param="stream",
            )
        return await answered(bytes(found.response), permit, request)

    @router.delete("/{response_id}", openapi_extra=described(DeletedResponse))
    async def delete_response(response_id: str, permit: PermitOf, request: Request) -> Response:
        await stored.delete(permit.caller.tenant_id, response_id)
        deleted = msgspec.json.encode(DeletedResponse(response_id))
        return await answered(deleted, permit, request)

    @router.post("/{response_id}/cancel", openapi_extra=described(ResponseReply))
    async def cancel_response(response_id: str, permit: PermitOf) -> Response:
        await stored.find(permit.caller.tenant_id, response_id, permit.body)
        raise BadRequest(
            "only responses that run in the background can be cancelled, and none does; close the"
            " connection of one that is being answered",
            code="response_not_cancellable",
            param="response_id",
        )

    @router.get("/{response_id}/input_items", openapi_extra=described(InputItemList))
    async def list_input_items(
        response_id: str,
        permit: PermitOf,
        request: Request,
        limit: int = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        found = await stored.find(permit.caller.tenant_id, response_id, permit.body)

        def work() -> Steps[bytes]:
            items = listed(found)
            yield
            return msgspec.json.encode(a_page(items, limit, order, after))

        size = found.size // BYTES_PER_CHARACTER
        page = await parts.answering.admission.off_the_loop(permit.caller, work(), size)
        return await answered(page, permit, request)
