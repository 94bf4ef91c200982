"""The routes of OpenAI's dialect. Each reads, converts, admits and answers a request."""
# `from __future__ import annotations` would break FastAPI: it evaluates the handlers' annotations,
# which name the local variable `authenticate`.

from datetime import UTC, datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from gateway.caller import Caller
from gateway.dialects.dialect import Authenticate, ModelCard, Permitted, RouteParts
from gateway.dialects.dialect_request import BYTES_PER_CHARACTER, json_response
from gateway.dialects.google_models import (
    GeminiModelList,
    is_googles,
    model_named,
    models_of,
)
from gateway.dialects.openai.adapters import add_adapters
from gateway.dialects.openai.answers.model_replies import (
    Detokenized,
    Model,
    ModelList,
    Tokenized,
    TokenizerInfo,
)
from gateway.dialects.openai.answers.replies import ChatChunk, ChatCompletion, Completion
from gateway.dialects.openai.deployments import model_of
from gateway.dialects.openai.modules import add_modules
from gateway.dialects.openai.prefill_routes import add_prefill
from gateway.dialects.openai.reader import Reader
from gateway.dialects.openai.requests.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from gateway.dialects.openai.tokenize import detokenize, tokenize, tokens_in
from gateway.dialects.openai_shape import limit_headers
from gateway.dialects.openrouter_models import is_openrouters, routed_models
from gateway.http.direct import Guard, direct
from gateway.http.openapi import described
from gateway.requests.answering import Answering
from gateway.requests.permits import Permit
from gateway.tenant_adapters import TenantAdapter

_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


def openai_router(parts: RouteParts) -> APIRouter:
    """Return a router with all routes of the dialect."""
    router = APIRouter()
    reader = Reader(parts.card, parts.bounds, parts.answering.admission)
    permitted = parts.permitted()
    _add_generation(router, reader, parts.answering, parts.guard())
    add_prefill(router, reader, parts.answering, parts.guard())
    _add_tokens(router, reader, permitted)
    _add_tokenizer(router, parts.card, parts.authenticate)
    _add_models(router, parts.card, parts.authenticate)
    add_adapters(router, parts, permitted)
    add_modules(router, parts, permitted)
    return router


def _add_generation(
    router: APIRouter, reader: Reader, answering: Answering, guard: Guard[Caller, Permit]
) -> None:
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
    PermitOf = Annotated[Permit, Depends(permitted)]

    @router.post("/tokenize", openapi_extra=described(Tokenized, TokenizeRequest))
    async def tokenize_prompt(request: Request, permit: PermitOf) -> Response:
        wire, _ = await reader.read(request, permit, _TOKENIZE)
        size = permit.body.size // BYTES_PER_CHARACTER
        shown = await tokenize(wire, permit.caller, reader.admission, reader.bounds, size)
        await permit.give_back()
        return json_response(shown, limit_headers(permit.standing))

    @router.post("/detokenize", openapi_extra=described(Detokenized, DetokenizeRequest))
    async def detokenize_tokens(request: Request, permit: PermitOf) -> Response:
        wire, _ = await reader.read(request, permit, _DETOKENIZE, tokens_in)
        shown = await detokenize(wire, permit.caller, reader.admission)
        await permit.give_back()
        return json_response(shown, limit_headers(permit.standing))


def _add_tokenizer(router: APIRouter, card: ModelCard, authenticate: Authenticate) -> None:
    @router.get("/tokenizer_info", openapi_extra=described(TokenizerInfo))
    async def show_tokenizer(caller: Annotated[Caller, Depends(authenticate)]) -> Response:
        del caller
        return json_response(card.tokenizer_info)


def _add_models(router: APIRouter, card: ModelCard, authenticate: Authenticate) -> None:
    CallerOf = Annotated[Caller, Depends(authenticate)]

    @router.get("/v1/models", openapi_extra=described(ModelList))
    async def list_models(caller: CallerOf, request: Request) -> Response:
        card.named(model_of(request), caller)
        if is_googles(request):
            listed = GeminiModelList(models=models_of(card, caller))
            return json_response(msgspec.json.encode(listed))
        if is_openrouters(request):
            return json_response(msgspec.json.encode(routed_models(card, caller)))
        models = [_model(card), *(_adapter(card, one) for one in caller.adapters)]
        first, last = models[0].id, models[-1].id
        shown = ModelList(data=models, first_id=first, last_id=last)
        return json_response(msgspec.json.encode(shown))

    @router.get("/v1/models/{name:path}", openapi_extra=described(Model))
    async def show_model(name: str, caller: CallerOf, request: Request) -> Response:
        card.named(model_of(request), caller)
        if is_googles(request):
            return json_response(msgspec.json.encode(model_named(card, name, caller)))
        card.named(name, caller)
        adapters = [_adapter(card, one) for one in caller.adapters if one.name == name]
        return json_response(msgspec.json.encode((adapters or [_model(card)])[0]))


def _model(card: ModelCard) -> Model:
    return _named_model(card, card.name, card.created)


def _adapter(card: ModelCard, adapter: TenantAdapter) -> Model:
    shown = _named_model(card, adapter.name, int(adapter.created_at))
    return msgspec.structs.replace(shown, parent=card.name)


def _named_model(card: ModelCard, name: str, created: int) -> Model:
    return Model(
        id=name,
        created=created,
        owned_by="ratoon",
        max_model_len=card.max_model_len,
        display_name=name,
        created_at=datetime.fromtimestamp(created, UTC).isoformat(),
        max_input_tokens=card.max_model_len,
    )
