"""The common parts of requests that compute prompts and generate nothing.

An embedding is the hidden state of the last token after the final norm, scaled to length 1.
Qwen3-Embedding was published this way. A shorter embedding is the first numbers of the whole
embedding, scaled again (Matryoshka representation learning, Kusupati et al., 2022).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from fastapi import Response

from engine.link.messages import SamplingParams
from gateway.dialects.dialect_request import DialectRequest
from gateway.errors import BadRequest
from gateway.generation.choice import Event
from gateway.http.answers.whole_answer import gathered
from gateway.prompts.chats.template_variables import Scalar
from gateway.prompts.generation_request import GenerationRequest, Prompt, TextRules
from gateway.prompts.tokens.tokenizer import TokenIds
from gateway.requests.answering import Answering
from gateway.requests.request_usage import Usage

# Maximum number of bytes of a request's prompts. Each prompt repeats the shared text, so the
# prompts may be much larger than the body.
MOST_BYTES = 60_000_000
_TWO_BYTES = "utf-16-le"
# Templates have two names for thinking. Thinking is off, since the answer's first token is read.
WITHOUT_THOUGHTS: Mapping[str, Scalar] = {"enable_thinking": False, "thinking": False}
_PROMPT_PARAMS = ("prompt", "messages")
_SMALLEST = 1e-12  # minimum divisor, for a hidden state of zeros
_DIGITS = 9  # number of decimals, more than a float32 up to 1 has


class NoStream:
    """The base of renderers of answers without a stream. Choice i belongs to prompt i."""

    __slots__ = ()

    last: ClassVar[bytes] = b""

    def begin(self, usage: Usage) -> None:
        """Write nothing."""

    def frame(self, event: Event) -> None:
        """Write nothing."""

    def usage_frame(self, usage: Usage) -> None:
        """Write nothing."""


class PrefillRequest(NamedTuple):
    """A request that generates nothing, and the bytes that its prompts take in memory."""

    asked: GenerationRequest
    num_bytes: int


def prefill_request(
    request_id: str,
    prompts: tuple[Prompt, ...],
    salt: str | None,
    *,
    num_bytes: int,
    embeds: bool = False,
    candidates: tuple[bytes, ...] = (),
) -> PrefillRequest:
    """Make a request that computes `prompts`, each once, and generates nothing.

    `candidates` has packed token ids for each prompt. The answer is their logits after the prompt.
    """
    asked = GenerationRequest(
        request_id=request_id,
        prompts=prompts,
        choices=1,
        sampling=SamplingParams(max_tokens=0, temperature=0.0),
        max_tokens_may_shrink=False,
        text=TextRules(),
        salt=salt,
        embeds=embeds,
        candidates=candidates,
    )
    return PrefillRequest(asked, num_bytes)


def check_size(size: int, param: str) -> int:
    """Return `size`. If it exceeds MOST_BYTES, raise BadRequest for the field `param`."""
    if size > MOST_BYTES:
        raise BadRequest(
            f"the prompts take {size} bytes of memory together, at most {MOST_BYTES} are allowed",
            param=param,
        )
    return size


def bytes_of(prompts: Sequence[str | TokenIds], shared: str = "") -> int:
    """Count the bytes of the prompts in memory. Each text also contains the text `shared`."""
    length, width = len(shared), _width(shared)
    return sum(
        one.nbytes if isinstance(one, np.ndarray) else (length + len(one)) * max(width, _width(one))
        for one in prompts
    )


def _width(text: str) -> int:
    if text.isascii():
        return 1
    return 2 if len(text.encode(_TWO_BYTES)) == 2 * len(text) else 4


def check_dimensions(asked: int | None, hidden_size: int, name: str, param: str) -> None:
    """Raise BadRequest if `asked` exceeds `hidden_size`. The error names `name` and `param`."""
    if asked is not None and asked > hidden_size:
        raise BadRequest(
            f"`{name}` is {asked}, the model's embeddings have {hidden_size}", param=param
        )


def scaled(
    state: npt.NDArray[np.float32], dimensions: int | None = None
) -> npt.NDArray[np.float64]:
    """Scale the first `dimensions` numbers (None: all) of a hidden state (H,) to length 1."""
    values = state[:dimensions].astype(np.float64)
    return values / max(float(np.linalg.norm(values)), _SMALLEST)


def numbers(state: bytes, dimensions: int | None = None) -> list[float]:
    """List an embedding's rounded numbers. `state` is unscaled, in little endian float32."""
    listed: list[float] = scaled(np.frombuffer(state, "<f4"), dimensions).round(_DIGITS).tolist()
    return listed


@contextmanager
def naming(param: str) -> Iterator[None]:
    """Make errors of admission name the field `param` in place of the prompt."""
    try:
        yield
    except BadRequest as error:
        if error.param in _PROMPT_PARAMS:
            error.param = param
        raise


async def answered(
    asked: DialectRequest, num_bytes: int, answering: Answering, param: str
) -> Response:
    """Answer a request, and count `num_bytes` of answer memory until the answer's end.

    Errors in the prompts name the field `param`.
    """
    with naming(param):
        gathered(asked.request.scope).grow(num_bytes)
        return await asked.respond(answering, stream=False)
