"""The limits that the model and its context set on a request's sampling."""

import msgspec
import numpy as np

from engine.link.messages import SamplingParams
from gateway.prompts.generation_request import ChatPrompt, GenerationRequest, Prompt
from gateway.prompts.pipeline.tokenised import check_ids, not_in_vocabulary, too_long
from gateway.tenant_limits import Limits

_SEEDS = 2**64


def param_of(prompt: Prompt) -> str:
    """Return the request field that contains the prompt."""
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"


def check_vocabulary(sampling: SamplingParams, vocab_size: int) -> None:
    """Raise BadRequest for a token id that the model does not have."""
    check_ids(np.frombuffer(sampling.logit_bias.token_ids, "<i4"), vocab_size, "logit_bias")
    if not all(0 <= token_id < vocab_size for token_id in sampling.stop_token_ids):
        raise not_in_vocabulary(vocab_size, "stop_token_ids")


def least_room(wanted: GenerationRequest) -> int:
    """Return the minimum number of answer tokens for which the context must have room."""
    return 1 if wanted.max_tokens_may_shrink else max(1, wanted.sampling.max_tokens)


def within_context(
    wanted: GenerationRequest, reach: int, held: int, max_model_len: int, limits: Limits
) -> SamplingParams:
    """Fit the request's `max_tokens` into the model's context and into the tenant's bound.

    The prompt takes `reach` tokens of the context, and the cache holds `held` tokens for it.
    """
    context, before, most = max_model_len, reach, limits.max_request_tokens
    of_tenant = most is not None and most - held < context - before
    if most is not None and of_tenant:
        context, before = most, held
    left, sampling, least = context - before, wanted.sampling, least_room(wanted)
    if left < least:
        param = param_of(wanted.prompts[0])
        raise too_long(before + least, context, param, of_tenant=of_tenant)
    if sampling.max_tokens <= left:
        return sampling
    return msgspec.structs.replace(
        sampling, max_tokens=left, min_tokens=min(sampling.min_tokens, left)
    )


def of_choice(sampling: SamplingParams, choice: int) -> SamplingParams:
    """Return `sampling` with this choice's seed, which follows from the request's seed."""
    if sampling.seed is None or choice == 0:
        return sampling
    wrapped = (sampling.seed + choice + _SEEDS // 2) % _SEEDS - _SEEDS // 2
    return msgspec.structs.replace(sampling, seed=wrapped)
