"""The requests of routes that generate nothing, and the names of their fields in errors."""

from collections.abc import Iterator
from contextlib import contextmanager

from engine.link.messages import SamplingParams
from gateway.errors import BadRequest
from gateway.prompts.generation_request import GenerationRequest, Prompt, TextRules

_PROMPT_PARAMS = ("prompt", "messages")  # names of a prompt in errors of admission


def prefill_request(
    request_id: str, prompts: tuple[Prompt, ...], salt: str | None, *, embeds: bool = False
) -> GenerationRequest:
    """Make a request that computes `prompts`, each once, and generates nothing."""
    return GenerationRequest(
        request_id=request_id,
        prompts=prompts,
        choices=1,
        sampling=SamplingParams(max_tokens=0, temperature=0.0),
        max_tokens_may_shrink=False,
        text=TextRules(),
        salt=salt,
        embeds=embeds,
    )


@contextmanager
def naming(param: str) -> Iterator[None]:
    """Let errors of admission name the field `param` where they speak of a prompt."""
    try:
        yield
    except BadRequest as error:
        if error.param in _PROMPT_PARAMS:
            error.param = param
        raise
