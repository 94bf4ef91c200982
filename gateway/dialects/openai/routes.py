"""The routes of OpenAI's dialect: each reads, converts, admits and answers a request.

Slow work runs in threads, off the event loop. A body is freed as soon as it is parsed, and the
parsed fields as soon as the `GenerationRequest` is made.

Knows: paths, and the order of reading, parsing and understanding. Does not know: fields (`schema`),
or what they mean (`chat`, `completions`, `tokenize`).
"""
# No `from __future__ import annotations`: FastAPI evaluates the annotations of the handlers, and
# they name `authenticate`, which is a local variable.

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from msgspec import UNSET, UnsetType

from gateway.caller import Caller
from gateway.config import Bounds
from gateway.dialects.dialect import Authenticate, ModelCard, Permitted, RouteParts
from gateway.dialects.dialect_request import (
    BYTES_PER_CHARACTER,
    DialectRequest,
    json_response,
    read_wire,
    work_with,
)
from gateway.dialects.openai.chat import request_of_chat
from gateway.dialects.openai.chat_reply import ChatReply
from gateway.dialects.openai.completions import CompletionReply, request_of_completion
from gateway.dialects.openai.prompts import prompt_in
from gateway.dialects.openai.replies import (
    ChatChunk,
    ChatCompletion,
    Completion,
    Detokenized,
    Model,
    ModelList,
    ServedTier,
    Tokenized,
)
from gateway.dialects.openai.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Generating,
    TokenizeRequest,
)
from gateway.dialects.openai.tokenize import detokenize, tokenize, tokens_in
from gateway.dialects.openai_shape import limit_headers
from gateway.http.body import Body, Part
from gateway.http.direct import Guard, direct
from gateway.http.openapi import described
from gateway.http.request_head import request_id_of
from gateway.processes.fair_executor import Steps
from gateway.prompts.chats.chat_tools import SentTools
from gateway.prompts.generation_request import GenerationRequest, size_of
from gateway.prompts.pipeline.admission import Admission
from gateway.requests.answering import Answering
from gateway.requests.permits import Permit

Understood = TypeVar("Understood")
T = TypeVar("T", ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)

_CHAT = msgspec.json.Decoder(ChatRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)
_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


def openai_router(parts: RouteParts) -> APIRouter:
    """Return a router with all routes of the dialect."""
    router = APIRouter()
    reader = Reader(parts.card, parts.bounds, parts.answering.admission)
    permitted = parts.permitted()
    _add_generation(router, reader, parts.answering, parts.guard())
    _add_tokens(router, reader, permitted)
    _add_models(router, parts.card, parts.authenticate)
    return router


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of request bodies; it checks the model that a body names."""

    card: ModelCard
    bounds: Bounds
    admission: Admission

    async def chat(self, request: Request, permit: Permit) -> tuple[DialectRequest, bool]:
        """Read a chat request; return the request, and whether its answer is a stream."""
        wire = await self.read(request, permit, _CHAT)
        request_id = request_id_of(request.scope)

        def understand(bounds: Bounds) -> tuple[GenerationRequest, SentTools]:
            sent = SentTools.of(wire.tools)
            return request_of_chat(wire, request_id, bounds, self.card.defaults, sent), sent

        size = permit.body.size // BYTES_PER_CHARACTER
        wanted, sent = await self._understood(permit, size, understand)
        reply = ChatReply(
            id=f"chatcmpl-{request_id}",
            request_id=request_id,
            service_tier=_served_tier(wire),
            free=sent.free,
            ignored=sent.passed_over,
            prompt_logprobs=wire.prompt_logprobs,
            **self._reply_fields(wire),
        )
        return DialectRequest(wanted, reply, request, permit), bool(wire.stream)

    async def completion(self, request: Request, permit: Permit) -> tuple[DialectRequest, bool]:
        """Read a text completion request; return the request, and whether it wants a stream."""
        wire = await self.read(request, permit, _COMPLETION, prompt_in)
        request_id = request_id_of(request.scope)
        context = (await self.admission.engine()).max_model_len
        wanted = await self._understood(
            permit,
            work_with(bytes(wire.prompt), permit.body.size),
            lambda bounds: request_of_completion(
                wire, request_id, bounds, context, self.card.defaults
            ),
        )
        reply = CompletionReply(
            id=f"cmpl-{request_id}",
            echoed=wanted.prompts if wire.echo else (),
            choices=wanted.choices,
            skip_special_tokens=wanted.text.skip_special_tokens,
            has_logprobs=wire.logprobs is not None,
            prompt_logprobs=wire.prompt_logprobs,
            **self._reply_fields(wire),
        )
        echoed = wanted.choices * sum(map(size_of, wanted.prompts)) if wire.echo else 0
        asked = DialectRequest(wanted, reply, request, permit, echoed=echoed)
        return asked, bool(wire.stream)

    async def read(
        self,
        request: Request,
        permit: Permit,
        decoder: msgspec.json.Decoder[T],
        bulk: Callable[[Body], Part] | None = None,
    ) -> T:
        """Parse the body; raise GatewayError for a bad body or a model that is not served.

        `bulk` is as in `parse_steps`.
        """
        wire = await read_wire(request, permit, decoder, self.bounds, self.admission, bulk)
        self.card.check(wire.model)
        return wire

    async def _understood(
        self, permit: Permit, size: int, understand: Callable[[Bounds], Understood]
    ) -> Understood:
        """Run `understand` off the event loop; `size` is its work in characters."""
        bounds = self.bounds
        if permit.caller.is_operator:  # an operator may choose to load
            bounds = msgspec.structs.replace(bounds, allow_cache_load=True)

        def work() -> Steps[Understood]:
            yield from ()
            return understand(bounds)

        return await self.admission.off_the_loop(permit.caller, work(), size)

    def _reply_fields(self, wire: Generating) -> dict[str, Any]:
        options = wire.stream_options
        return {
            "created": int(time.time()),
            "model": self.card.name,
            "include_usage": options is not None and options.include_usage is True,
            "tokenizer": self.admission.tokenizer,
            "shows_ids": bool(wire.return_token_ids),
        }


def _served_tier(wire: ChatRequest) -> ServedTier | UnsetType:
    """Name the service tier that is served; UNSET if the request names no tier."""
    if wire.service_tier is None:
        return UNSET
    return "flex" if wire.service_tier == "flex" else "default"


def _add_generation(
    router: APIRouter, reader: Reader, answering: Answering, guard: Guard[Caller, Permit]
) -> None:
    """Serve chat and text completions."""

    @direct(
        router,
        "/v1/chat/completions",
        guard,
        described(ChatCompletion, ChatRequest, event=ChatChunk),
    )
    async def chat_completions(request: Request, permit: Permit) -> Response:
        asked, stream = await reader.chat(request, permit)
        return await asked.respond(answering, stream=stream)

    @direct(
        router,
        "/v1/completions",
        guard,
        described(Completion, CompletionRequest, event=Completion),
    )
    async def completions(request: Request, permit: Permit) -> Response:
        asked, stream = await reader.completion(request, permit)
        return await asked.respond(answering, stream=stream)


def _add_tokens(router: APIRouter, reader: Reader, permitted: Permitted) -> None:
    """Serve `/tokenize` and `/detokenize`."""
    PermitOf = Annotated[Permit, Depends(permitted)]

    @router.post("/tokenize", openapi_extra=described(Tokenized, TokenizeRequest))
    async def tokenize_prompt(request: Request, permit: PermitOf) -> Response:
        wire = await reader.read(request, permit, _TOKENIZE)
        size = permit.body.size // BYTES_PER_CHARACTER
        shown = await tokenize(wire, permit.caller, reader.admission, reader.bounds, size)
        await permit.give_back()
        return json_response(shown, limit_headers(permit.standing))

    @router.post("/detokenize", openapi_extra=described(Detokenized, DetokenizeRequest))
    async def detokenize_tokens(request: Request, permit: PermitOf) -> Response:
        wire = await reader.read(request, permit, _DETOKENIZE, tokens_in)
        shown = await detokenize(wire, permit.caller, reader.admission)
        await permit.give_back()
        return json_response(shown, limit_headers(permit.standing))


def _add_models(router: APIRouter, card: ModelCard, authenticate: Authenticate) -> None:
    """Serve `/v1/models`."""
    CallerOf = Annotated[Caller, Depends(authenticate)]

    @router.get("/v1/models", openapi_extra=described(ModelList))
    async def list_models(caller: CallerOf) -> Response:  # noqa: ARG001
        return json_response(
            msgspec.json.encode(
                ModelList(data=[_model(card)], first_id=card.name, last_id=card.name)
            )
        )

    @router.get("/v1/models/{name:path}", openapi_extra=described(Model))
    async def show_model(name: str, caller: CallerOf) -> Response:  # noqa: ARG001
        card.check(name)
        return json_response(msgspec.json.encode(_model(card)))


def _model(card: ModelCard) -> Model:
    return Model(
        id=card.name,
        created=card.created,
        owned_by="ratoon",
        max_model_len=card.max_model_len,
        display_name=card.name,
        created_at=datetime.fromtimestamp(card.created, UTC).isoformat(),
        max_input_tokens=card.max_model_len,
    )
