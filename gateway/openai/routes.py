"""The routes of OpenAI's dialect.

Knows: paths, the order of body, parsing and answering. Does not know: how any of it is done.
"""
# No `from __future__ import annotations`: FastAPI reads the annotations of the handlers, and
# those name `authenticate`, which is no module's.

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from gateway.admission import Ask
from gateway.answering import Answering, Origin
from gateway.body import parse, read_body
from gateway.caller import Caller
from gateway.config import Bounds
from gateway.disconnect import until_gone
from gateway.openai.chat import ChatReply, ask_of_chat
from gateway.openai.completions import CompletionReply, ask_of_completion
from gateway.openai.models import ModelCard
from gateway.openai.openapi import described
from gateway.openai.replies import (
    ChatCompletion,
    Completion,
    Detokenized,
    Model,
    ModelList,
    Tokenized,
)
from gateway.openai.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Generating,
    TokenizeRequest,
)
from gateway.openai.sse import sse
from gateway.openai.stream import EventStream
from gateway.openai.telling import Reply, gather
from gateway.openai.tokenize import detokenize, tokenize
from gateway.request_head import arrived_at, request_id_of

Authenticate = Callable[[Request], Awaitable[Caller]]
T = TypeVar("T")

_CHAT = msgspec.json.Decoder(ChatRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)
_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


def openai_router(
    answering: Answering, card: ModelCard, bounds: Bounds, authenticate: Authenticate
) -> APIRouter:
    """All routes of the dialect; each asks `authenticate` who calls before it reads the body."""
    router = APIRouter()
    admission = answering.admission
    CallerOf = Annotated[Caller, Depends(authenticate)]

    async def read(request: Request, decoder: msgspec.json.Decoder[T]) -> T:
        return parse(
            decoder, await read_body(request, bounds.max_body_bytes), bounds.max_json_depth
        )

    @router.post("/v1/chat/completions", openapi_extra=described(ChatCompletion, ChatRequest))
    async def chat_completions(request: Request, caller: CallerOf) -> Response:
        wire = await read(request, _CHAT)
        card.check(wire.model)
        ask = ask_of_chat(wire, request_id_of(request.scope), bounds)
        reply = ChatReply(
            id=f"chatcmpl-{ask.request_id}",
            created=int(time.time()),
            model=card.name,
            include_usage=_includes_usage(wire),
            tokenizer=admission.tokenizer,
        )
        exchange = _Exchange(ask, reply, _origin(request, caller))
        return await _respond(request, answering, exchange, stream=bool(wire.stream))

    @router.post("/v1/completions", openapi_extra=described(Completion, CompletionRequest))
    async def completions(request: Request, caller: CallerOf) -> Response:
        wire = await read(request, _COMPLETION)
        card.check(wire.model)
        ask = ask_of_completion(wire, request_id_of(request.scope), bounds)
        reply = CompletionReply(
            id=f"cmpl-{ask.request_id}",
            created=int(time.time()),
            model=card.name,
            include_usage=_includes_usage(wire),
            tokenizer=admission.tokenizer,
            echo=wire.echo is True,
            ask=ask,
        )
        exchange = _Exchange(ask, reply, _origin(request, caller))
        return await _respond(request, answering, exchange, stream=bool(wire.stream))

    @router.post("/tokenize", openapi_extra=described(Tokenized, TokenizeRequest))
    async def tokenize_prompt(request: Request, caller: CallerOf) -> Response:  # noqa: ARG001
        wire = await read(request, _TOKENIZE)
        card.check(wire.model)
        return _json(await tokenize(wire, admission, bounds))

    @router.post("/detokenize", openapi_extra=described(Detokenized, DetokenizeRequest))
    async def detokenize_tokens(request: Request, caller: CallerOf) -> Response:  # noqa: ARG001
        wire = await read(request, _DETOKENIZE)
        card.check(wire.model)
        return _json(await detokenize(wire, admission))

    @router.get("/v1/models", openapi_extra=described(ModelList))
    async def list_models(caller: CallerOf) -> Response:  # noqa: ARG001
        return _json(card.all())

    @router.get("/v1/models/{name:path}", openapi_extra=described(Model))
    async def show_model(name: str, caller: CallerOf) -> Response:  # noqa: ARG001
        card.check(name)
        return _json(card.model())

    return router


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request: what is asked, how the answer is told, where it came from."""

    ask: Ask
    reply: Reply
    origin: Origin


async def _respond(
    request: Request, answering: Answering, exchange: _Exchange, *, stream: bool
) -> Response:
    if stream:
        return EventStream(_frames(answering, exchange))
    return _json(await until_gone(request.receive, _whole(answering, exchange)))


async def _whole(answering: Answering, exchange: _Exchange) -> msgspec.Struct:
    async with answering.answer(exchange.ask, exchange.origin) as (events, meter):
        choices = await gather(events)
        return exchange.reply.whole(choices, meter.usage())


async def _frames(answering: Answering, exchange: _Exchange) -> AsyncGenerator[bytes, None]:
    reply = exchange.reply
    async with answering.answer(exchange.ask, exchange.origin) as (events, meter):
        async for event in events:
            frame = reply.frame(event)
            if frame is not None:
                yield frame
        if reply.include_usage:
            yield sse(reply.usage_chunk(meter.usage()))


def _includes_usage(wire: Generating) -> bool:
    return wire.stream_options is not None and wire.stream_options.include_usage is True


def _origin(request: Request, caller: Caller) -> Origin:
    return Origin(request.scope["route"].path, caller, arrived_at(request.scope))


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
