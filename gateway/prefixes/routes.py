"""`/v1/cache`: what a request would find, computing its prompt ahead, and one's marked prefixes.

Everything is about the calling tenant's own prompts: a request is admitted as if it were sent, so
its namespaces are the caller's. Each route counts as a request; warming is charged like an answer
of one token.

Knows: paths, and what each asks of the engine. Does not know: how a request is read (dialects).
"""
# No `from __future__ import annotations`: FastAPI evaluates the annotations of the handlers, and
# they name `permitted`, which is a local variable.

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from engine.link.messages import SamplingParams
from gateway.admin.bounded_engine import BoundedEngine
from gateway.dialects.anthropic.reading import generation_request as request_of_messages
from gateway.dialects.anthropic.schema import MessagesRequest
from gateway.dialects.dialect import RouteParts
from gateway.dialects.exchange import BYTES_PER_CHARACTER, json_response, read_wire
from gateway.dialects.finished_choice import gather
from gateway.dialects.openai.chat import request_of_chat
from gateway.dialects.openai.completions import request_of_completion
from gateway.dialects.openai.schema import ChatRequest, CompletionRequest
from gateway.dialects.openai_shape import limit_headers
from gateway.errors import BadRequest, NotFound
from gateway.http.body import parse_part
from gateway.http.openapi import described
from gateway.http.request_head import request_id_of, running_request, until_gone
from gateway.limits.permits import Permit
from gateway.prefixes.views import (
    ByTier,
    CachePrefix,
    CachePrefixDeleted,
    CachePrefixList,
    CacheProbe,
    CacheWarmed,
    RequestOf,
    prefix_id,
)
from gateway.prompts.fair_executor import Steps
from gateway.prompts.generation_request import AnswerForm, GenerationRequest, TextRules

_REQUEST = msgspec.json.Decoder(RequestOf)
_CHAT = msgspec.json.Decoder(ChatRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)
_MESSAGES = msgspec.json.Decoder(MessagesRequest)

# One token is sampled, and dropped. With stop strings shown it is remembered as nobody's turn.
_ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
_UNSEEN = TextRules(include_stop=True)


def prefixes_router(parts: RouteParts) -> APIRouter:
    """All routes of `/v1/cache`."""
    router = APIRouter(prefix="/v1/cache")
    answering, admission = parts.answering, parts.answering.admission
    engine = BoundedEngine(parts.card.engine)
    PermitOf = Annotated[Permit, Depends(parts.permitted())]

    @router.post("/probe", openapi_extra=described(CacheProbe, RequestOf))
    async def probe(request: Request, permit: PermitOf) -> Response:
        admitted = await admission.admit(await _wanted(request, permit, parts), permit.caller)
        [asked] = admitted.generates
        found = await engine.probe(asked.token_ids, asked.namespaces)
        shown = CacheProbe(
            prompt_tokens=admitted.prompt_tokens,
            cached_tokens=found.tiers.total,
            saved_ms=None if found.saved_seconds is None else 1000 * found.saved_seconds,
            tiers=ByTier.of(found.tiers) if permit.caller.sees_tiers else msgspec.UNSET,
        )
        return await _replied(shown, permit)

    @router.post("/warm", openapi_extra=described(CacheWarmed, RequestOf))
    async def warm(request: Request, permit: PermitOf) -> Response:
        wanted, scope = await _wanted(request, permit, parts), request.scope

        async def computed() -> CacheWarmed:
            running = running_request(scope)
            async with answering.answer(wanted, scope["route"].path, running, permit) as answer:
                await gather(answer.events)
                used = answer.request_metrics.usage()
            return CacheWarmed(
                prompt_tokens=used.prompt_tokens,
                cached_tokens=used.cached_tokens,
                cache_write_tokens=sum(used.written),
            )

        shown = await until_gone(request.receive, computed())
        return json_response(msgspec.json.encode(shown), limit_headers(permit.standing))

    @router.get("/prefixes", openapi_extra=described(CachePrefixList))
    async def prefixes(permit: PermitOf) -> Response:
        found, sees = await engine.marked(permit.caller.tenant_id), permit.caller.sees_tiers
        data = [CachePrefix.of(one, sees_tiers=sees) for one in found]
        return await _replied(CachePrefixList(data=data), permit)

    @router.delete("/prefixes/{id}", openapi_extra=described(CachePrefixDeleted))
    async def delete(id: str, permit: PermitOf) -> Response:  # noqa: A002 (the name in the path)
        key, blocks = prefix_id(id), None
        if key is not None:
            blocks = await engine.forget_marked(permit.caller.tenant_id, key)
        if blocks is None:
            raise NotFound("there is no marked prefix with this id; see /v1/cache/prefixes")
        size = (await admission.engine()).block_size
        return await _replied(CachePrefixDeleted(id=id, tokens=blocks * size), permit)

    return router


async def _replied(shown: msgspec.Struct, permit: Permit) -> Response:
    await permit.give_back()
    return json_response(msgspec.json.encode(shown), limit_headers(permit.standing))


async def _wanted(request: Request, permit: Permit, parts: RouteParts) -> GenerationRequest:
    """The request in the body, as its dialect reads it, to be answered with one token."""
    admission, bounds = parts.answering.admission, parts.bounds
    wire = await read_wire(request, permit, _REQUEST, bounds, admission)
    context = (await admission.engine()).max_model_len
    understand = _reader(wire, request_id_of(request.scope), parts, context)

    def work() -> Steps[GenerationRequest]:
        yield from ()
        return understand()

    size = permit.body.size // BYTES_PER_CHARACTER
    wanted = await admission.off_the_loop(permit.caller, work(), size)
    if len(wanted.prompts) > 1:
        raise BadRequest("there is more than one prompt", param="body.prompt")
    return replace(
        wanted,
        choices=1,
        sampling=_ONE_TOKEN,
        max_tokens_may_shrink=True,
        text=_UNSEEN,
        form=AnswerForm(),
    )


def _reader(
    wire: RequestOf, request_id: str, parts: RouteParts, context: int
) -> Callable[[], GenerationRequest]:
    """Reads the body as `url` would."""
    bounds, card = parts.bounds, parts.card

    def read() -> GenerationRequest:
        match wire.url:
            case "/v1/chat/completions":
                chat = parse_part(_CHAT, bytes(wire.body))
                card.check(chat.model)
                return request_of_chat(chat, request_id, bounds)
            case "/v1/completions":
                text = parse_part(_COMPLETION, bytes(wire.body))
                card.check(text.model)
                return request_of_completion(text, request_id, bounds, context)
            case "/v1/messages":
                messages = parse_part(_MESSAGES, bytes(wire.body))
                card.check(messages.model)
                return request_of_messages(messages, request_id, bounds)

    return read
