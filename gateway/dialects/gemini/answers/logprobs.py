"""Log-probabilities in Gemini's shape: the chosen tokens, and the likeliest at each step."""

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from engine.link.event_messages import TokenLogprobs
from gateway.dialects.lazy_json import Listed
from gateway.prompts.tokens.tokenizer import Tokenizer

_IMPOSSIBLE = -9999.0  # sent in place of minus infinity, which JSON cannot express


class LogprobsCandidate(Struct, frozen=True, kw_only=True, rename="camel"):
    """A token and its log-probability."""

    token: str
    token_id: int
    log_probability: float


class TopCandidates(Struct, frozen=True, kw_only=True):
    """The likeliest tokens at a step, the likeliest first."""

    candidates: list[LogprobsCandidate]


class LogprobsResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """The log-probabilities of the chosen tokens and, if requested, of the likeliest tokens."""

    chosen_candidates: Sequence[LogprobsCandidate]
    top_candidates: Sequence[TopCandidates] | UnsetType = UNSET


def logprobs_result(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprobs],
    listed: Listed,
) -> LogprobsResult:
    """Write the log-probabilities of tokens, in lists made by `listed` (at once or lazily)."""

    def chosen(at: int) -> LogprobsCandidate:
        return _candidate(tokenizer, token_ids[at], logprobs[at].chosen)

    def top(at: int) -> TopCandidates:
        found = logprobs[at].top
        return TopCandidates(candidates=[_candidate(tokenizer, *one) for one in found])

    has_top = any(one.top_ids for one in logprobs[:1])
    return LogprobsResult(
        chosen_candidates=listed(len(logprobs), chosen),
        top_candidates=listed(len(logprobs), top) if has_top else UNSET,
    )


def average(logprobs: Sequence[TokenLogprobs]) -> float:
    """Return the mean log-probability of the chosen tokens, or 0 if there are no tokens."""
    return sum(max(one.chosen, _IMPOSSIBLE) for one in logprobs) / max(len(logprobs), 1)


def _candidate(tokenizer: Tokenizer, token_id: int, logprob: float) -> LogprobsCandidate:
    text = tokenizer.bytes_of(token_id).decode(errors="replace")
    return LogprobsCandidate(
        token=text, token_id=token_id, log_probability=max(logprob, _IMPOSSIBLE)
    )
