"""The route `/v1/embeddings`: inputs become prompts, and hidden states become embeddings.

Some tokenizers append a token to a text. The prompt of a text then ends with that token. Nothing is
appended to token ids.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.config import Bounds
from gateway.dialects.finished_choice import FinishedChoice
from gateway.dialects.lazy_json import LazyList
from gateway.dialects.openai.prefill.rendering import WholeReply, prompt_usage
from gateway.dialects.openai.prefill.replies import Embedding, Embeddings
from gateway.dialects.openai.prefill.schema import EmbeddingRequest
from gateway.dialects.openai.requests.prompts import prompts_of
from gateway.dialects.prefill_request import (
    PrefillRequest,
    bytes_of,
    check_dimensions,
    check_size,
    numbers,
    prefill_request,
    scaled,
)
from gateway.prompts.chats.chat_json import refuse_unsupported
from gateway.requests.request_usage import Usage


def request_of_embeddings(
    wire: EmbeddingRequest, request_id: str, bounds: Bounds, context: int, hidden_size: int
) -> PrefillRequest:
    """Convert `wire` into a request, for a model with the hidden size `hidden_size`.

    Raises BadRequest for a wrong field.
    """
    refuse_unsupported(wire)
    check_dimensions(wire.dimensions, hidden_size, "dimensions", "dimensions")
    prompts = prompts_of(wire.input, bounds.max_inputs, context, "input")
    size = check_size(bytes_of(prompts), "input")
    return prefill_request(request_id, prompts, wire.cache_salt, num_bytes=size, embeds=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsReply(WholeReply):
    """A renderer of embeddings."""

    id: str
    dimensions: int | None  # length of each embedding; None: the hidden size
    is_base64: bool

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> Embeddings:
        """Write all embeddings. Each embedding is made when it is encoded."""
        made = LazyList(len(choices), lambda at: self._embedding(choices[at]), at_once=1)
        return Embeddings(id=self.id, data=made, model=self.model, usage=prompt_usage(usage))

    def _embedding(self, choice: FinishedChoice) -> Embedding:
        state = choice.end.embedding
        spelled: list[float] | str
        if self.is_base64:
            values = scaled(np.frombuffer(state, "<f4"), self.dimensions)
            spelled = base64.b64encode(values.astype("<f4").tobytes()).decode()
        else:
            spelled = numbers(state, self.dimensions)
        return Embedding(index=choice.index, embedding=spelled)
