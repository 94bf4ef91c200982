"""The routes of OpenAI's dialect.

Knows: paths, and the order of reading, parsing and answering. Does not know: how these are done.
"""
# No `from __future__ import annotations`: FastAPI evaluates the annotations of the handlers, and
# they name `authenticate`, which is a local variable.

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from gateway.admission import Admission, Ask
from gateway.answering import Answering, Origin
from gateway.body import parse, read_body
from gateway.caller import Caller
from gateway.config import Bounds
from gateway.disconnect import until_gone
from gateway.openai.chat import ChatReply, ask_of_chat
from gateway.openai.completions import CompletionReply, ask_of_completion
from gateway.openai.limit_headers import limit_headers
from gateway.openai.models import ModelCard
from gateway.openai.prompts import prompt_in
from gateway.openai.rendering import Reply, gather
from gateway.openai.replies import (
    ChatChunk,
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
from gateway.openai.tokenize import detokenize, tokenize, tokens_in
from gateway.openapi import described, streaming
from gateway.request_head import arrived_at, request_id_of, trace_link

Authenticate = Callable[[Request], Awaitable[Caller]]
T = TypeVar("T", ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)

_CHAT = msgspec.json.Decoder(ChatRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)
_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)
_BYTES_PER_CHARACTER = 256  # of spelled token ids: as much work as a character to be tokenised


def openai_router(
    answering: Answering, card: ModelCard, bounds: Bounds, authenticate: Authenticate
) -> APIRouter:
    """All routes of the dialect; each calls `authenticate` before it reads the body."""
    router = APIRouter()
    reader = _Reader(card, bounds)
    _add_generation(router, reader, answering, authenticate)
    _add_tokens(router, reader, answering.admission, authenticate)
    _add_models(router, card, authenticate)
    return router


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads request bodies and checks the model that they name."""

    card: ModelCard
    bounds: Bounds

    def bounds_for(self, caller: Caller) -> Bounds:
        """The operator may choose whether blocks are loaded, whatever tenants may."""
        if not caller.is_operator:
            return self.bounds
        return msgspec.structs.replace(self.bounds, allow_cache_load=True)

    async def read(
        self,
        request: Request,
        decoder: msgspec.json.Decoder[T],
        bulk: Callable[[bytes], bytes] | None = None,
    ) -> T:
        """The parsed body; raises GatewayError for a bad body or another model.

        `bulk` is as in `parse`.
        """
        body = await read_body(request, self.bounds.max_body_bytes)
        wire = parse(decoder, body, self.bounds.max_json_depth, bulk)
        self.card.check(wire.model)
        return wire


def _add_generation(
    router: APIRouter, reader: _Reader, answering: Answering, authenticate: Authenticate
) -> None:
    """Chat and text completions."""
    CallerOf = Annotated[Caller, Depends(authenticate)]
    model, tokenizer = reader.card.name, answering.admission.tokenizer

    @router.post(
        "/v1/chat/completions",
        openapi_extra=streaming(described(ChatCompletion, ChatRequest), ChatChunk),
    )
    async def chat_completions(request: Request, caller: CallerOf) -> Response:
        wire = await reader.read(request, _CHAT)
        ask = ask_of_chat(wire, request_id_of(request.scope), reader.bounds_for(caller))
        reply = ChatReply(
            id=f"chatcmpl-{ask.request_id}",
            created=int(time.time()),
            model=model,
            include_usage=_includes_usage(wire),
            tokenizer=tokenizer,
        )
        exchange = _Exchange(ask, reply, _origin(request, caller))
        return await _respond(request, answering, exchange, stream=bool(wire.stream))

    @router.post(
        "/v1/completions",
        openapi_extra=streaming(described(Completion, CompletionRequest), Completion),
    )
    async def completions(request: Request, caller: CallerOf) -> Response:
        wire = await reader.read(request, _COMPLETION, prompt_in)
        bounds = reader.bounds_for(caller)
        ask = await _ask_of(wire, request_id_of(request.scope), answering.admission, bounds)
        reply = CompletionReply(
            id=f"cmpl-{ask.request_id}",
            created=int(time.time()),
            model=model,
            include_usage=_includes_usage(wire),
            tokenizer=tokenizer,
            echo=wire.echo is True,
            ask=ask,
        )
        exchange = _Exchange(ask, reply, _origin(request, caller))
        return await _respond(request, answering, exchange, stream=bool(wire.stream))


def _add_tokens(
    router: APIRouter, reader: _Reader, admission: Admission, authenticate: Authenticate
) -> None:
    """`/tokenize` and `/detokenize`."""
    CallerOf = Annotated[Caller, Depends(authenticate)]

    @router.post("/tokenize", openapi_extra=described(Tokenized, TokenizeRequest))
    async def tokenize_prompt(request: Request, caller: CallerOf) -> Response:  # noqa: ARG001
        wire = await reader.read(request, _TOKENIZE)
        return _json(await tokenize(wire, admission, reader.bounds))

    @router.post("/detokenize", openapi_extra=described(Detokenized, DetokenizeRequest))
    async def detokenize_tokens(request: Request, caller: CallerOf) -> Response:  # noqa: ARG001
        wire = await reader.read(request, _DETOKENIZE, tokens_in)
        return _json(await detokenize(wire, admission))


def _add_models(router: APIRouter, card: ModelCard, authenticate: Authenticate) -> None:
    """`/v1/models`."""
    CallerOf = Annotated[Caller, Depends(authenticate)]

    @router.get("/v1/models", openapi_extra=described(ModelList))
    async def list_models(caller: CallerOf) -> Response:  # noqa: ARG001
        return _json(card.all())

    @router.get("/v1/models/{name:path}", openapi_extra=described(Model))
    async def show_model(name: str, caller: CallerOf) -> Response:  # noqa: ARG001
        card.check(name)
        return _json(card.model())


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request: what it asks for, how its answer is rendered, where it came from."""

    ask: Ask
    reply: Reply
    origin: Origin
    headers: dict[str, str] = field(default_factory=dict)  # known once the request is admitted


async def _ask_of(
    wire: CompletionRequest, request_id: str, admission: Admission, bounds: Bounds
) -> Ask:
    """What a text completion asks; a batch of long prompts is taken in prompt by prompt, beside
    what else the gateway does."""
    context = (await admission.engine()).max_model_len
    work = partial(ask_of_completion, wire, request_id, bounds, context)
    return await admission.off_the_loop(work, len(bytes(wire.prompt)) // _BYTES_PER_CHARACTER)


async def _respond(
    request: Request, answering: Answering, exchange: _Exchange, *, stream: bool
) -> Response:
    if stream:
        return EventStream(_frames(answering, exchange), exchange.headers)
    whole = await until_gone(request.receive, _whole(answering, exchange))
    return _json(whole, exchange.headers)


async def _whole(answering: Answering, exchange: _Exchange) -> msgspec.Struct:
    async with answering.answer(exchange.ask, exchange.origin) as answer:
        exchange.headers.update(limit_headers(answer.standing))
        choices = await gather(answer.events)
        return exchange.reply.whole(choices, answer.meter.usage())


async def _frames(answering: Answering, exchange: _Exchange) -> AsyncGenerator[bytes, None]:
    reply = exchange.reply
    async with answering.answer(exchange.ask, exchange.origin) as answer:
        exchange.headers.update(limit_headers(answer.standing))
        async for event in answer.events:
            frame = reply.frame(event)
            if frame is not None:
                yield frame
        if reply.include_usage:
            yield sse(reply.usage_chunk(answer.meter.usage()))


def _includes_usage(wire: Generating) -> bool:
    return wire.stream_options is not None and wire.stream_options.include_usage is True


def _origin(request: Request, caller: Caller) -> Origin:
    scope = request.scope
    return Origin(scope["route"].path, caller, arrived_at(scope), trace_link(scope))


def _json(value: msgspec.Struct, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(value), headers=dict(headers or {}), media_type="application/json"
    )
