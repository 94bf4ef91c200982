"""Embeddings in Gemini's shape: contents become prompts, and hidden states become embeddings.

All texts of a content are one prompt. Each request of a batch sets the length of its embedding.

Elsewhere: how a hidden state is scaled (`prefill_request.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fastapi import Request

from gateway.dialects.dialect_request import BYTES_PER_CHARACTER, DialectRequest, read_wire
from gateway.dialects.finished_choice import FinishedChoice
from gateway.dialects.gemini.chats.turns import text_of
from gateway.dialects.gemini.embedding_schema import (
    BatchEmbedContentsRequest,
    BatchEmbedContentsResponse,
    ContentEmbedding,
    EmbedContentRequest,
    EmbedContentResponse,
)
from gateway.dialects.gemini.reading import GeminiReader, check_model
from gateway.dialects.gemini.spelling import EitherDecoder
from gateway.dialects.lazy_json import LazyList
from gateway.dialects.prefill_request import (
    NoStream,
    PrefillRequest,
    bytes_of,
    check_dimensions,
    check_size,
    numbers,
    prefill_request,
)
from gateway.errors import BadRequest
from gateway.http.request_head import request_id_of
from gateway.processes.fair_executor import in_one_step
from gateway.prompts.chats.chat_json import refuse_unsupported
from gateway.requests.permits import Permit
from gateway.requests.request_usage import Usage
from gateway.tenant_limits import RateStatus

_ONE = EitherDecoder(EmbedContentRequest)
_BATCH = EitherDecoder(BatchEmbedContentsRequest)


@dataclass(frozen=True, slots=True)
class EmbeddingRendering(NoStream):
    """A renderer of embeddings."""

    dimensions: Sequence[int | None]  # length of each embedding; None: the hidden size
    is_batch: bool

    def headers(self, standing: RateStatus) -> Mapping[str, str]:
        """Return no headers, because Google's API has none for rate limits."""
        del standing
        return {}

    def whole(
        self, choices: Sequence[FinishedChoice], usage: Usage
    ) -> EmbedContentResponse | BatchEmbedContentsResponse:
        """Write the embedding, or a batch of embeddings, each made only when it is encoded."""
        del usage
        if not self.is_batch:
            return EmbedContentResponse(self._embedding(choices[0]))
        made = LazyList(len(choices), lambda at: self._embedding(choices[at]), at_once=1)
        return BatchEmbedContentsResponse(made)

    def _embedding(self, choice: FinishedChoice) -> ContentEmbedding:
        return ContentEmbedding(numbers(choice.end.embedding, self.dimensions[choice.index]))


async def embedding_request(
    reader: GeminiReader, request: Request, permit: Permit, name: str, *, is_batch: bool
) -> tuple[DialectRequest, int]:
    """Read a request for embeddings of the model `name`; return the request and the texts' bytes.

    Raises BadRequest for a wrong field.
    """
    model = reader.card.named(name, permit.caller)
    if is_batch:
        batch = await read_wire(request, permit, _BATCH, reader.bounds, reader.admission)
        wanted = batch.requests
    else:
        wanted = [await read_wire(request, permit, _ONE, reader.bounds, reader.admission)]
    hidden_size = (await reader.admission.engine()).hidden_size
    most, request_id = reader.bounds.max_inputs, request_id_of(request.scope)
    if len(wanted) > most:
        raise BadRequest(f"there are more than {most} requests", param="requests")

    def understand() -> PrefillRequest:
        return _request(wanted, name, request_id, hidden_size, is_batch=is_batch)

    size = permit.body.size // BYTES_PER_CHARACTER
    admission = reader.admission
    made = await admission.off_the_loop(permit.caller, in_one_step(understand), size)
    rendering = EmbeddingRendering([one.output_dimensionality for one in wanted], is_batch)
    asked = replace(made.asked, adapter=model.adapter)
    return DialectRequest(asked, rendering, request, permit), made.num_bytes


def _request(
    wanted: Sequence[EmbedContentRequest],
    model: str,
    request_id: str,
    hidden_size: int,
    *,
    is_batch: bool,
) -> PrefillRequest:
    texts, salt = list[str](), wanted[0].cache_salt
    for place, one in enumerate(wanted):
        where = f"requests[{place}]." if is_batch else ""
        dimensions, name = one.output_dimensionality, "outputDimensionality"
        refuse_unsupported(one, where)
        check_model(one.model, model, f"{where}model")
        check_dimensions(dimensions, hidden_size, name, f"{where}{name}")
        if one.cache_salt != salt:
            raise BadRequest("all requests have one `cacheSalt`", param=f"{where}cacheSalt")
        texts.append(text_of(one.content, f"{where}content"))
        if not texts[-1]:
            raise BadRequest("the content has no text", param=f"{where}content")
    size = check_size(bytes_of(texts), "requests" if is_batch else "content")
    return prefill_request(request_id, tuple(texts), salt, num_bytes=size, embeds=True)
