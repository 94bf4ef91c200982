"""Log-probabilities in OpenAI's two shapes."""

from __future__ import annotations

from collections.abc import Sequence

from engine.link.messages import TokenLogprobs
from gateway.dialects.openai.replies import (
    ChatLogprobs,
    CompletionLogprobs,
    TokenLogprob,
    TopLogprob,
)
from gateway.generation.choice import ScoredPrompt
from gateway.generation.detokenizer import Detokenizer
from gateway.prompts.tokenizer import Tokenizer

_IMPOSSIBLE = -9999.0  # OpenAI's value for minus infinity, which JSON does not have


def chat_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprobs],
    *,
    begins: bool,
) -> ChatLogprobs:
    """For every token its text, bytes and log-probability, and the likeliest alternatives.

    `begins` says that the first of them is the first of its choice.
    """
    told = zip(token_ids, logprobs, strict=True)
    return ChatLogprobs(
        [_chosen(tokenizer, *one, first=begins and not place) for place, one in enumerate(told)]
    )


def _chosen(
    tokenizer: Tokenizer, token_id: int, found: TokenLogprobs, *, first: bool
) -> TokenLogprob:
    top = [_top(tokenizer, other, logprob, first=first) for other, logprob in found.top]
    chosen = _top(tokenizer, token_id, found.chosen, first=first)
    return TokenLogprob(chosen.token, chosen.logprob, chosen.bytes, top)


def _top(tokenizer: Tokenizer, token_id: int, logprob: float, *, first: bool) -> TopLogprob:
    spelled = tokenizer.bytes_of(token_id, first=first)
    return TopLogprob(spelled.decode(errors="replace"), finite(logprob), list(spelled))


class Offsets:
    """Where the text of each token of a choice starts, in characters of what is shown.

    A token that is not shown, or that only begins a character, has no width.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._text = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._shown = 0

    def of_next(self, token_id: int) -> int:
        """Where `token_id`, the next of the choice, starts."""
        start = self._shown
        self._shown += len(self._text.push(token_id))
        return start


def completion_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprobs],
    offsets: Offsets,
    echoed: ScoredPrompt | None = None,
) -> CompletionLogprobs:
    """The same as parallel lists; `offsets` has seen the choice's tokens before these.

    An echoed prompt comes first. Its first token follows nothing, so it has no log-probability.
    """
    told: list[TokenLogprobs | None] = [*logprobs]
    if echoed is not None:
        token_ids, told = [*echoed.token_ids, *token_ids], [None, *echoed.logprobs, *told]
    names = [token_name(tokenizer, token_id) for token_id in token_ids]
    tops = [_top_names(tokenizer, *one) for one in zip(names, told, strict=True)]
    has_tops = any(found is not None and found.top for found in told)
    return CompletionLogprobs(
        tokens=names,
        token_logprobs=[None if found is None else finite(found.chosen) for found in told],
        top_logprobs=tops if has_tops else None,
        text_offset=[offsets.of_next(token_id) for token_id in token_ids],
    )


def _top_names(
    tokenizer: Tokenizer, name: str, found: TokenLogprobs | None
) -> dict[str, float] | None:
    if found is None:
        return None
    top = {token_name(tokenizer, other): finite(logprob) for other, logprob in found.top}
    return top | {name: finite(found.chosen)}


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """The token as text, or as its bytes if it is not whole characters, so that names differ."""
    spelled = tokenizer.bytes_of(token_id)
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def finite(logprob: float) -> float:
    """The log-probability, or OpenAI's value for minus infinity."""
    return max(logprob, _IMPOSSIBLE)
