"""The routes that generate nothing. Each reads a body, admits its prompts and answers whole."""

from dataclasses import replace

import msgspec
from fastapi import APIRouter, Request, Response

from gateway.caller import Caller
from gateway.dialects.dialect_request import BYTES_PER_CHARACTER, DialectRequest, work_with
from gateway.dialects.openai.prefill.decisions import DecisionReply, request_of_decisions
from gateway.dialects.openai.prefill.embeddings import EmbeddingsReply, request_of_embeddings
from gateway.dialects.openai.prefill.replies import Decision, Embeddings, Reranked
from gateway.dialects.openai.prefill.rerank import RerankReply, request_of_rerank, texts_of
from gateway.dialects.openai.prefill.schema import DecisionRequest, EmbeddingRequest, RerankRequest
from gateway.dialects.openai.reader import Reader
from gateway.dialects.openai.requests.prompts import input_in
from gateway.dialects.prefill_request import answered
from gateway.http.direct import Guard, direct
from gateway.http.openapi import described
from gateway.http.request_head import request_id_of
from gateway.requests.answering import Answering
from gateway.requests.permits import Permit

# The paths of Jina and of Cohere's v1, of Cohere's v2, and of other servers.
RERANK = ("/v1/rerank", "/v2/rerank", "/rerank")

_DECISIONS = msgspec.json.Decoder(DecisionRequest)
_RERANK = msgspec.json.Decoder(RerankRequest)
_EMBEDDINGS = msgspec.json.Decoder(EmbeddingRequest)


def add_prefill(
    router: APIRouter, reader: Reader, answering: Answering, guard: Guard[Caller, Permit]
) -> None:
    """Add the routes to `router`."""
    _add_embeddings(router, reader, answering, guard)
    for path in RERANK:
        _add_rerank(router, path, reader, answering, guard)
    _add_decisions(router, reader, answering, guard)


def _add_embeddings(
    router: APIRouter, reader: Reader, answering: Answering, guard: Guard[Caller, Permit]
) -> None:
    @direct(router, "/v1/embeddings", guard, described(Embeddings, EmbeddingRequest))
    async def embeddings(request: Request, permit: Permit) -> Response:
        wire, model = await reader.read(request, permit, _EMBEDDINGS, input_in)
        request_id = request_id_of(request.scope)
        welcome = await reader.admission.engine()
        wanted = await reader.understood(
            permit,
            work_with(bytes(wire.input), permit.body.size),
            lambda bounds: request_of_embeddings(
                wire, request_id, bounds, welcome.max_model_len, welcome.hidden_size
            ),
        )
        reply = EmbeddingsReply(
            id=f"embd-{request_id}",
            model=model.name,
            dimensions=wire.dimensions,
            is_base64=wire.encoding_format == "base64",
        )
        made = replace(wanted.asked, adapter=model.adapter)
        asked = DialectRequest(made, reply, request, permit)
        return await answered(asked, wanted.num_bytes, answering, "input")


def _add_rerank(
    router: APIRouter, path: str, reader: Reader, answering: Answering, guard: Guard[Caller, Permit]
) -> None:
    @direct(router, path, guard, described(Reranked, RerankRequest))
    async def rerank(request: Request, permit: Permit) -> Response:
        wire, model = await reader.read(request, permit, _RERANK)
        request_id = request_id_of(request.scope)
        welcome = await reader.admission.engine()
        work = request_of_rerank(
            wire, request_id, reader.bounds, reader.admission.tokenizer, welcome.max_model_len
        )
        size = permit.body.size // BYTES_PER_CHARACTER
        wanted = await reader.admission.off_the_loop(permit.caller, work, size)
        reply = RerankReply(
            model=model.name,
            id=f"rerank-{request_id}",
            top_n=wire.top_n or wire.top_k,
            is_voyages=wire.top_k is not None or wire.truncation is not None,
            texts=texts_of(wire) if wire.return_documents else (),
        )
        echoed = sum(map(len, reply.texts))
        made = replace(wanted.asked, adapter=model.adapter)
        asked = DialectRequest(made, reply, request, permit, echoed=echoed)
        return await answered(asked, wanted.num_bytes, answering, "documents")


def _add_decisions(
    router: APIRouter, reader: Reader, answering: Answering, guard: Guard[Caller, Permit]
) -> None:
    @direct(router, "/v1/decisions", guard, described(Decision, DecisionRequest))
    async def decisions(request: Request, permit: Permit) -> Response:
        wire, model = await reader.read(request, permit, _DECISIONS)
        request_id = request_id_of(request.scope)
        tokenizer = reader.admission.tokenizer
        wanted = await reader.understood(
            permit,
            permit.body.size // BYTES_PER_CHARACTER,
            lambda _: request_of_decisions(wire, request_id, tokenizer),
        )
        reply = DecisionReply(model=model.name, questions=wire.questions)
        made = replace(wanted.asked, adapter=model.adapter)
        asked = DialectRequest(made, reply, request, permit)
        return await answered(asked, wanted.num_bytes, answering, "input")
