"""Log-probabilities of a prompt's tokens, in vLLM's form."""

from msgspec import UNSET, UnsetType

from engine.link.event_messages import TokenLogprobs
from gateway.dialects.lazy_json import LazyList
from gateway.dialects.openai.answers.logprobs import finite, token_name
from gateway.dialects.openai.answers.replies import PromptLogprob, PromptLogprobs
from gateway.generation.choice import ScoredPrompt
from gateway.prompts.tokens.tokenizer import Tokenizer


def prompt_logprobs(
    tokenizer: Tokenizer, prompt: ScoredPrompt | None, most: int | None
) -> PromptLogprobs | UnsetType:
    """Write each prompt token and its `most` likeliest candidates; UNSET if not requested."""
    if prompt is None or most is None:
        return UNSET
    token_ids, logprobs = prompt.token_ids, prompt.logprobs

    def candidates(at: int) -> dict[int, PromptLogprob] | None:
        return _candidates(tokenizer, token_ids[at], logprobs[at - 1], most) if at else None

    return LazyList(len(token_ids), candidates)


def _candidates(
    tokenizer: Tokenizer, token_id: int, found: TokenLogprobs, most: int
) -> dict[int, PromptLogprob]:
    candidates = {
        other: PromptLogprob(finite(logprob), rank, token_name(tokenizer, other))
        for rank, (other, logprob) in enumerate(found.top[:most], start=1)
    }
    own = PromptLogprob(finite(found.chosen), found.rank or 1, token_name(tokenizer, token_id))
    return {token_id: candidates.pop(token_id, own)} | candidates
