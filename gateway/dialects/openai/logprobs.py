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
from gateway.generation.detokenizer import Detokenizer
from gateway.prompts.tokenizer import Tokenizer

_IMPOSSIBLE = -9999.0  # OpenAI's value for minus infinity, which JSON does not have


def chat_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> ChatLogprobs:
    """For every token its text, bytes and log-probability, and the likeliest alternatives."""
    return ChatLogprobs(
        [
            _chosen(tokenizer, token_id, found)
            for token_id, found in zip(token_ids, logprobs, strict=True)
        ]
    )


def _chosen(tokenizer: Tokenizer, token_id: int, found: TokenLogprobs) -> TokenLogprob:
    top = [_top(tokenizer, other, logprob) for other, logprob in found.top]
    chosen = _top(tokenizer, token_id, found.chosen)
    return TokenLogprob(chosen.token, chosen.logprob, chosen.bytes, top)


def _top(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprob:
    spelled = tokenizer.bytes_of(token_id)
    return TopLogprob(spelled.decode(errors="replace"), _finite(logprob), list(spelled))


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
) -> CompletionLogprobs:
    """The same as parallel lists; `offsets` has seen the choice's tokens before these."""
    names = [_name(tokenizer, token_id) for token_id in token_ids]
    tops = [
        {_name(tokenizer, other): _finite(logprob) for other, logprob in found.top}
        | {name: _finite(found.chosen)}
        for name, found in zip(names, logprobs, strict=True)
    ]
    has_tops = any(found.top for found in logprobs)
    return CompletionLogprobs(
        tokens=names,
        token_logprobs=[_finite(found.chosen) for found in logprobs],
        top_logprobs=tops if has_tops else None,
        text_offset=[offsets.of_next(token_id) for token_id in token_ids],
    )


def _name(tokenizer: Tokenizer, token_id: int) -> str:
    """The token as text, or as its bytes if it is not whole characters, so that names differ."""
    spelled = tokenizer.bytes_of(token_id)
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _finite(logprob: float) -> float:
    return max(logprob, _IMPOSSIBLE)
