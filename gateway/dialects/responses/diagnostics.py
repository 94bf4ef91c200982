"""OpenAI's field `prompt_cache_diagnostics`, and the extension `ratoon` beside it.

    prompt_cache_options: {comparison_response_id: "resp_..."}    in a request
    prompt_cache_diagnostics: {type: "cache_miss", ...}           in the response, at its end

The field is null if the request asks for no comparison. If OpenAI has no name for a reason, the
reason is `unavailable`. `ratoon` names every reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.diagnosis.cache_miss import CacheMiss
from gateway.diagnosis.comparison import Explain
from gateway.diagnosis.parts import PromptPart
from gateway.dialects.explaining import RatoonReply, ratoon_reply
from gateway.dialects.responses.schema import ResponsesRequest
from gateway.requests.request_usage import Usage

MissReason = Literal["model_changed", "tools_changed", "input_changed", "reasoning_effort_changed"]


class CacheMissed(Struct, frozen=True, kw_only=True, tag_field="type", tag="cache_miss"):
    """The change that caused the miss, the missed tokens, and the reusable tokens."""

    reason: MissReason
    cache_missed_tokens: int
    comparison_reusable_tokens: int | None


class CacheHit(Struct, frozen=True, tag_field="type", tag="cache_hit"):
    """A cache hit: less than one KV block of the prompt was missing."""


class ComparisonNotFound(
    Struct, frozen=True, tag_field="type", tag="comparison_response_not_found"
):
    """The result if the gateway does not remember the named response."""


class DiagnosticsUnavailable(Struct, frozen=True, tag_field="type", tag="unavailable"):
    """The result if the cause is unknown, or if OpenAI has no name for it."""


CacheDiagnostics = CacheMissed | CacheHit | ComparisonNotFound | DiagnosticsUnavailable


class MissQuestions(Struct, frozen=True):
    """The questions that a request asks about its cache misses."""

    compared_with: str | None = None  # a response's id, from `comparison_response_id`
    wants_ratoon: bool = False
    # an answer's id, from `ratoon`; takes precedence over `compared_with`
    previous_id: str | None = None
    has_modules: bool = False

    @classmethod
    def of(cls, wire: ResponsesRequest) -> MissQuestions:
        """Read the questions that `wire` asks about the cache."""
        options, own = wire.prompt_cache_options, wire.ratoon
        compared_with = None if options is None else options.comparison_response_id
        if own is None or not own.explain:
            return cls(compared_with, has_modules=own is not None and own.modules is not None)
        return cls(compared_with, wants_ratoon=True, previous_id=own.previous_id)

    def explain(self, parts: Callable[[], Iterable[PromptPart]]) -> Explain | None:
        """Return the comparison of prompts that either field asks for, or None."""
        if self.compared_with is None and not self.wants_ratoon:
            return None
        return Explain(self.previous_id or self.compared_with, tuple(parts()))

    def diagnostics(self, usage: Usage) -> CacheDiagnostics | None:
        """Write the response's field `prompt_cache_diagnostics`."""
        return None if self.compared_with is None else _diagnostics(usage.cache_miss)

    def ratoon(self, usage: Usage) -> RatoonReply | UnsetType:
        """Write the response's field `ratoon`."""
        return ratoon_reply(usage) if self.wants_ratoon or self.has_modules else UNSET


def _diagnostics(miss: CacheMiss | None) -> CacheDiagnostics:
    if miss is None:
        return DiagnosticsUnavailable()
    match miss.reason:
        case "none":
            return CacheHit()
        case "previous_not_found":
            return ComparisonNotFound()
        case "model_changed" | "tools_changed" as reason:
            return _missed(reason, miss)
        case "system_changed" | "messages_changed":
            return _missed("input_changed", miss)
        case "template_changed" if miss.change == "reasoning_effort":
            return _missed("reasoning_effort_changed", miss)
        case _:
            return DiagnosticsUnavailable()


def _missed(reason: MissReason, miss: CacheMiss) -> CacheMissed:
    return CacheMissed(
        reason=reason,
        cache_missed_tokens=miss.lost_tokens or 0,
        comparison_reusable_tokens=miss.reusable_tokens,
    )
