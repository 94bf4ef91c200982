"""The route `/v1/embeddings`: from inputs to prompts, from hidden states to embeddings.

An embedding is the hidden state of the last token after the final norm, scaled to length 1, as
Qwen3-Embedding is published. A text ends with the token that the model's tokenizer appends, if it
does; token ids are computed as they are. A shorter embedding (`dimensions`) is the first numbers
of the whole one, scaled again (Matryoshka representation learning, Kusupati et al., 2022).
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gateway.config import Bounds
from gateway.dialects.finished_choice import FinishedChoice
from gateway.dialects.lazy_json import LazyList
from gateway.dialects.openai.prefill.rendering import WholeReply, prompt_usage
from gateway.dialects.openai.prefill.replies import Embedding, Embeddings
from gateway.dialects.openai.prefill.requests import (
    PrefillRequest,
    bytes_of,
    check_size,
    prefill_request,
)
from gateway.dialects.openai.prefill.schema import EmbeddingRequest
from gateway.dialects.openai.prompts import prompts_of
from gateway.errors import BadRequest
from gateway.prompts.chats.chat_json import refuse_unsupported
from gateway.requests.request_metrics import Usage

_SMALLEST = 1e-12  # length of a vector that is not scaled further
_DIGITS = 9  # decimals of a number: more than a float32 of this size has


def request_of_embeddings(
    wire: EmbeddingRequest, request_id: str, bounds: Bounds, context: int, hidden_size: int
) -> PrefillRequest:
    """Convert `wire` into a request of `hidden_size` numbers; BadRequest names the wrong field."""
    refuse_unsupported(wire)
    if wire.dimensions is not None and wire.dimensions > hidden_size:
        raise BadRequest(
            f"`dimensions` is {wire.dimensions}, the model's embeddings have {hidden_size}",
            param="dimensions",
        )
    prompts = prompts_of(wire.input, bounds.max_inputs, context, "input")
    size = check_size(bytes_of(prompts), "input")
    return prefill_request(request_id, prompts, wire.cache_salt, num_bytes=size, embeds=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsReply(WholeReply):
    """A renderer of embeddings."""

    id: str
    dimensions: int | None  # numbers of an embedding; None: all
    is_base64: bool

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> Embeddings:
        """Write all embeddings; each is made when it is encoded."""
        made = LazyList(len(choices), lambda at: self._embedding(choices[at]), at_once=1)
        return Embeddings(id=self.id, data=made, model=self.model, usage=prompt_usage(usage))

    def _embedding(self, choice: FinishedChoice) -> Embedding:
        values = scaled(np.frombuffer(choice.end.embedding, "<f4"), self.dimensions)
        spelled: list[float] | str
        if self.is_base64:
            spelled = base64.b64encode(values.astype("<f4").tobytes()).decode()
        else:
            spelled = values.round(_DIGITS).tolist()
        return Embedding(index=choice.index, embedding=spelled)


def scaled(
    state: npt.NDArray[np.float32], dimensions: int | None = None
) -> npt.NDArray[np.float64]:
    """Scale the first `dimensions` numbers (None: all) of a hidden state (H,) to length 1."""
    values = state[:dimensions].astype(np.float64)
    return values / max(float(np.linalg.norm(values)), _SMALLEST)
