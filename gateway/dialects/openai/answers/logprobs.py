"""Log-probabilities in OpenAI's two shapes, for chats and for text completions."""

from collections.abc import Sequence

from engine.link.event_messages import TokenLogprobs
from gateway.dialects.lazy_json import Listed, listed_now
from gateway.dialects.openai.answers.replies import (
    ChatLogprobs,
    CompletionLogprobs,
    TokenLogprob,
    TopLogprob,
)
from gateway.generation.choice import ScoredPrompt
from gateway.generation.detokenizer import Detokenizer
from gateway.prompts.tokens.tokenizer import Tokenizer

_IMPOSSIBLE = -9999.0  # OpenAI's value for minus infinity, which JSON cannot express


def chat_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprobs],
    *,
    begins: bool,
    listed: Listed = listed_now,
) -> ChatLogprobs:
    """Write each token's text, bytes and log-probability, and its likeliest alternatives.

    `begins` is true if the first of `token_ids` is the choice's first token.
    """

    def told(at: int) -> TokenLogprob:
        return _chosen(tokenizer, token_ids[at], logprobs[at], first=begins and not at)

    return ChatLogprobs(listed(len(logprobs), told))


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
    """The offsets of a choice's tokens in the shown text, in characters.

    A token that is hidden or does not complete a character has no width.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._text = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._shown = 0

    def of_next(self, token_id: int) -> int:
        """Return the offset of `token_id`, the choice's next token."""
        start = self._shown
        self._shown += len(self._text.push(token_id))
        return start


def completion_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprobs],
    offsets: Offsets,
    echoed: ScoredPrompt | None = None,
    *,
    listed: Listed = listed_now,
) -> CompletionLogprobs:
    """Write the log-probabilities as parallel lists.

    `offsets` must have seen all earlier tokens. The tokens of an echoed prompt come first.
    The first prompt token has no log-probability, since no token precedes it.
    """
    prompt = () if echoed is None else echoed.token_ids
    scores = () if echoed is None else echoed.logprobs
    before = len(prompt)

    def token(at: int) -> int:
        return prompt[at] if at < before else token_ids[at - before]

    def found(at: int) -> TokenLogprobs | None:
        if at >= before:
            return logprobs[at - before]
        return scores[at - 1] if at else None

    def logprob(at: int) -> float | None:
        told = found(at)
        return None if told is None else finite(told.chosen)

    length = before + len(logprobs)
    has_tops = any(one.top_ids for one in (*scores[:1], *logprobs[:1]))
    return CompletionLogprobs(
        tokens=listed(length, lambda at: token_name(tokenizer, token(at))),
        token_logprobs=listed(length, logprob),
        top_logprobs=listed(length, lambda at: _top_names(tokenizer, token(at), found(at)))
        if has_tops
        else None,
        text_offset=listed(length, lambda at: offsets.of_next(token(at))),
    )


def _top_names(
    tokenizer: Tokenizer, token_id: int, found: TokenLogprobs | None
) -> dict[str, float] | None:
    if found is None:
        return None
    top = {token_name(tokenizer, other): finite(logprob) for other, logprob in found.top}
    return top | {token_name(tokenizer, token_id): finite(found.chosen)}


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """Name the token by its text, or by its bytes if they are not whole characters."""
    spelled = tokenizer.bytes_of(token_id)
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def finite(logprob: float) -> float:
    """Return `logprob`, or OpenAI's value for minus infinity if `logprob` is lower."""
    return max(logprob, _IMPOSSIBLE)
