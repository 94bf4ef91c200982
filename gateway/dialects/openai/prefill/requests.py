"""The requests of routes that generate nothing, their size, and their fields' names in errors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from engine.link.messages import SamplingParams
from gateway.errors import BadRequest
from gateway.prompts.chats.template_variables import Scalar
from gateway.prompts.generation_request import GenerationRequest, Prompt, TextRules
from gateway.prompts.tokens.tokenizer import TokenIds

# What prompts share is in each of them: a small body may make much larger prompts.
MOST_BYTES = 60_000_000
_TWO_BYTES = "utf-16-le"
# Templates' names for whether the model thinks before its answer, of which the first token is read.
WITHOUT_THOUGHTS: Mapping[str, Scalar] = {"enable_thinking": False, "thinking": False}
_PROMPT_PARAMS = ("prompt", "messages")  # names of a prompt in errors of admission


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

    `candidates`: packed token ids for each prompt, whose logits after it are the answer.
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
    """Return `size`; raise BadRequest, naming the field `param`, if it is too many bytes."""
    if size > MOST_BYTES:
        raise BadRequest(
            f"the prompts take {size} bytes of memory together, at most {MOST_BYTES} are allowed",
            param=param,
        )
    return size


def bytes_of(prompts: Sequence[str | TokenIds], shared: str = "") -> int:
    """Count the bytes that prompts take in memory, each of them with the text `shared` in it."""
    length, width = len(shared), _width(shared)
    return sum(
        one.nbytes if isinstance(one, np.ndarray) else (length + len(one)) * max(width, _width(one))
        for one in prompts
    )


def _width(text: str) -> int:
    """Return the most bytes of a character: the widest one decides it for the whole text."""
    if text.isascii():
        return 1
    return 2 if len(text.encode(_TWO_BYTES)) == 2 * len(text) else 4


@contextmanager
def naming(param: str) -> Iterator[None]:
    """Make errors of admission name the field `param` in place of the prompt."""
    try:
        yield
    except BadRequest as error:
        if error.param in _PROMPT_PARAMS:
            error.param = param
        raise
