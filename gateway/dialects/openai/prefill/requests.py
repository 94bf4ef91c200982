"""The requests of routes that generate nothing, and the names of their fields in errors."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from engine.link.messages import SamplingParams
from gateway.errors import BadRequest
from gateway.prompts.chats.template_variables import Scalar
from gateway.prompts.generation_request import GenerationRequest, Prompt, TextRules

# What prompts share is in each of them: a small body may make much larger prompts.
MOST_CHARACTERS = 60_000_000
# Templates' names for whether the model thinks before its answer, of which the first token is read.
WITHOUT_THOUGHTS: Mapping[str, Scalar] = {"enable_thinking": False, "thinking": False}
_PROMPT_PARAMS = ("prompt", "messages")  # names of a prompt in errors of admission


def prefill_request(
    request_id: str,
    prompts: tuple[Prompt, ...],
    salt: str | None,
    *,
    embeds: bool = False,
    candidates: tuple[bytes, ...] = (),
) -> GenerationRequest:
    """Make a request that computes `prompts`, each once, and generates nothing.

    `candidates`: packed token ids for each prompt, whose logits after it are the answer.
    """
    return GenerationRequest(
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


def check_size(size: int, param: str) -> None:
    """Raise BadRequest, naming the field `param`, for prompts of too many characters together."""
    if size > MOST_CHARACTERS:
        raise BadRequest(
            f"the prompts have {size} characters together, at most {MOST_CHARACTERS} are allowed",
            param=param,
        )


@contextmanager
def naming(param: str) -> Iterator[None]:
    """Make errors of admission name the field `param` in place of the prompt."""
    try:
        yield
    except BadRequest as error:
        if error.param in _PROMPT_PARAMS:
            error.param = param
        raise
