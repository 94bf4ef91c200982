"""The routes of Gemini's dialect.

Elsewhere: how a request is read (`reading.py`).
"""
# `from __future__ import annotations` would break FastAPI: it evaluates the handlers' annotations,
# which name the local variable `permitted`.

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute

from gateway.caller import Caller
from gateway.dialects.dialect import RouteParts
from gateway.dialects.dialect_request import json_response
from gateway.dialects.gemini.answers.replies import (
    CountTokensResponse,
    GenerateContentResponse,
    ModalityTokenCount,
)
from gateway.dialects.gemini.cached import CachedContents
from gateway.dialects.gemini.cached_routes import add_cached_contents
from gateway.dialects.gemini.embedding_schema import (
    BatchEmbedContentsRequest,
    BatchEmbedContentsResponse,
    EmbedContentRequest,
    EmbedContentResponse,
)
from gateway.dialects.gemini.embeddings import embedding_request
from gateway.dialects.gemini.reading import GeminiReader
from gateway.dialects.gemini.schema import CountTokensRequest, GenerateContentRequest
from gateway.dialects.google_models import (
    GeminiModel,
    GeminiModelList,
    model_named,
    models_of,
)
from gateway.dialects.prefill_request import answered
from gateway.http.direct import direct
from gateway.http.openapi import described
from gateway.prompts.chats.chat_json import unsupported
from gateway.requests.permits import Permit

_MODEL = "/models/{model:path}"


def gemini_router(parts: RouteParts) -> APIRouter:
    """Return a router with all routes of the dialect.

    Clients use paths below `/v1beta` or `/v1`. OpenAPI lists only the paths below `/v1beta`.
    """
    contents = CachedContents(parts.records)
    reader = GeminiReader(parts.card, parts.bounds, parts.answering.admission, contents)
    router = _of_version(parts, reader, "/v1beta")
    _add_models(router, parts)
    for route in _of_version(parts, reader, "/v1").routes:
        assert isinstance(route, APIRoute)
        route.include_in_schema = False
        router.routes.append(route)
    return router


def _of_version(parts: RouteParts, reader: GeminiReader, version: str) -> APIRouter:
    router = APIRouter()
    _add_generation(router, parts, reader, version)
    _add_counting(router, parts, reader, version)
    _add_embeddings(router, parts, reader, version)
    add_cached_contents(router, parts, reader, f"{version}/cachedContents")
    return router


def _add_generation(
    router: APIRouter, parts: RouteParts, reader: GeminiReader, version: str
) -> None:
    path = f"{version}{_MODEL}"
    whole = described(GenerateContentResponse, GenerateContentRequest)
    events = described(
        GenerateContentResponse, GenerateContentRequest, event=GenerateContentResponse
    )
    alt = {"name": "alt", "in": "query", "required": True, "schema": {"enum": ["sse"]}}
    events["parameters"] = [alt]

    @direct(router, f"{path}:generateContent", parts.guard(), whole)
    async def generate_content(request: Request, permit: Permit) -> Response:
        asked = await reader.generation(request, permit, request.path_params["model"])
        return await asked.respond(parts.answering, stream=False)

    @direct(router, f"{path}:streamGenerateContent", parts.guard(), events)
    async def stream_generate_content(request: Request, permit: Permit) -> Response:
        if request.query_params.get("alt") != "sse":
            raise unsupported("alt", "it is `sse`")
        asked = await reader.generation(request, permit, request.path_params["model"])
        return await asked.respond(parts.answering, stream=True)


def _add_counting(router: APIRouter, parts: RouteParts, reader: GeminiReader, version: str) -> None:
    PermitOf = Annotated[Permit, Depends(parts.permitted())]
    admission = parts.answering.admission

    @router.post(
        f"{version}{_MODEL}:countTokens",
        openapi_extra=described(CountTokensResponse, CountTokensRequest),
    )
    async def count_tokens(model: str, request: Request, permit: PermitOf) -> Response:
        prompt, modules, salt = await reader.prompt(request, permit, model)
        counted = await admission.count(prompt, permit.caller, modules, salt, permit.body)
        await permit.give_back()
        return json_response(msgspec.json.encode(_counted(counted)))


def _add_embeddings(
    router: APIRouter, parts: RouteParts, reader: GeminiReader, version: str
) -> None:
    path = f"{version}{_MODEL}"
    one = described(EmbedContentResponse, EmbedContentRequest)
    batch = described(BatchEmbedContentsResponse, BatchEmbedContentsRequest)

    @direct(router, f"{path}:embedContent", parts.guard(), one)
    async def embed_content(request: Request, permit: Permit) -> Response:
        name = request.path_params["model"]
        asked, size = await embedding_request(reader, request, permit, name, is_batch=False)
        return await answered(asked, size, parts.answering, "content")

    @direct(router, f"{path}:batchEmbedContents", parts.guard(), batch)
    async def batch_embed_contents(request: Request, permit: Permit) -> Response:
        name = request.path_params["model"]
        asked, size = await embedding_request(reader, request, permit, name, is_batch=True)
        return await answered(asked, size, parts.answering, "requests")


def _counted(counted: int) -> CountTokensResponse:
    details = [ModalityTokenCount(token_count=counted)]
    return CountTokensResponse(total_tokens=counted, prompt_tokens_details=details)


def _add_models(router: APIRouter, parts: RouteParts) -> None:
    CallerOf = Annotated[Caller, Depends(parts.authenticate)]

    @router.get("/v1beta/models", openapi_extra=described(GeminiModelList))
    async def list_models(caller: CallerOf) -> Response:
        shown = GeminiModelList(models=models_of(parts.card, caller))
        return json_response(msgspec.json.encode(shown))

    @router.get(f"/v1beta{_MODEL}", openapi_extra=described(GeminiModel))
    async def show_model(model: str, caller: CallerOf) -> Response:
        return json_response(msgspec.json.encode(model_named(parts.card, model, caller)))
