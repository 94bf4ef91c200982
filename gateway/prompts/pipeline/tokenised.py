"""The context for which a prompt is tokenised, its tokens, and the errors of token ids."""

from __future__ import annotations

from dataclasses import dataclass

from engine.link.messages import Welcome
from gateway.errors import BadRequest
from gateway.prompts.generation_request import Origin
from gateway.prompts.tokens.control_tokens import Rendered
from gateway.prompts.tokens.tokenizer import TokenIds
from prefix_cache.namespace import Namespace


@dataclass(frozen=True, slots=True)
class PromptContext:
    """The tenant and the context for which a prompt is tokenised."""

    tenant_id: str
    namespace: Namespace  # namespace of the tenant's private blocks
    most: int
    room: int  # number of tokens to leave free below `most` when generated turns are put back
    vocab_size: int
    ends: tuple[int, ...]

    @classmethod
    def of(cls, welcome: Welcome, tenant_id: str, namespace: Namespace, room: int) -> PromptContext:
        """Make the context of a tenant with an engine's whole context length."""
        most, vocab, ends = welcome.max_model_len, welcome.vocab_size, welcome.eos_token_ids
        return cls(tenant_id, namespace, most, room, vocab, tuple(ends))


@dataclass(frozen=True, slots=True)
class Tokenised:
    """The token ids of a prompt."""

    token_ids: TokenIds
    # The end of a rendered chat without the prefill; None for other prompts.
    tail: str | None = None
    prefill: str = ""
    origin: Origin | None = None  # chat and place of the answer, if the answer is to be remembered
    last_text: str = ""
    rendered: Rendered | None = None  # None: the prompt is no chat


def check_ids(token_ids: TokenIds, vocab_size: int, param: str) -> None:
    """Raise BadRequest unless all token ids are in the vocabulary."""
    if len(token_ids) and not 0 <= token_ids.min() <= token_ids.max() < vocab_size:
        raise not_in_vocabulary(vocab_size, param)


def not_in_vocabulary(vocab_size: int, param: str) -> BadRequest:
    """Make the error for a token id that the model does not have."""
    return BadRequest(f"a token id is not in the vocabulary of {vocab_size}", param=param)


def too_long(
    tokens: int | None, context: int, param: str, *, of_tenant: bool = False
) -> BadRequest:
    """Make the error for a request that exceeds the context. None means an unknown length.

    The message begins with OpenAI's words, by which LiteLLM and agents know that the prompt is too
    long.
    """
    wanted = "far more" if tokens is None else f"{tokens} tokens with the answer"
    most = f"this model's maximum context length is {context} tokens"
    whose = " for this tenant" if of_tenant else ""
    return BadRequest(
        f"{most}{whose}, the request needs {wanted}",
        code="context_length_exceeded",
        param=param,
    )
