"""The extension `ratoon` of all dialects: cache misses, prompt modules, ignored fields, and drafts.

A request may ask why its prompt missed the cache. The answer also lists the request's fields that
have no effect here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.diagnosis.cache_miss import CacheMiss
from gateway.diagnosis.comparison import Explain
from gateway.diagnosis.parts import PromptPart
from gateway.prompts.chats.offered_tools import PassedOver
from gateway.prompts.modules.selection import ModulesOption
from gateway.requests.request_usage import Usage

AnswerId = Annotated[str, Meta(min_length=1, max_length=128)]


class RatoonOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ratoon's request fields. They ask why the prompt missed the cache, or name prompt modules.

    The prompt is compared with the prompt of the answer `previous_id`. Without `previous_id` it is
    compared with the tenant's most similar recent prompt.
    """

    explain: bool | None = None
    previous_id: AnswerId | None = None
    modules: ModulesOption | None = None


class RatoonReply(Struct, frozen=True, kw_only=True):
    """Ratoon's answer fields: the cache miss, the prompt modules, the ignored request fields."""

    modules: ModulesReply | UnsetType = UNSET
    cache_miss: CacheMiss | UnsetType = UNSET
    ignored: tuple[PassedOver, ...] | UnsetType = UNSET


class ModulesReply(Struct, frozen=True, kw_only=True):
    """The prompt modules that a request used.

    All modules attend to the prompt's beginning, and the modules in `together` also attend to each
    other. `cached_tokens` of the modules' `tokens` came from the cache.
    """

    schema: str
    used: tuple[str, ...]
    together: tuple[tuple[str, ...], ...]
    tokens: int
    cached_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> ModulesReply | UnsetType:
        """Return the prompt modules that a request used, or UNSET without modules."""
        found = usage.modules
        if found is None:
            return UNSET
        return cls(
            schema=found.schema,
            used=found.used,
            together=found.together,
            tokens=found.tokens,
            cached_tokens=min(usage.cached_tokens, found.tokens),
        )


class DraftedTokens(Struct, frozen=True, kw_only=True):
    """The number of tokens drafted from one source, and how many of them were accepted."""

    drafted_tokens: int
    accepted_tokens: int


class DraftUsage(Struct, frozen=True):
    """The draft tokens by source: `own`, `tree`, `answers`, `prediction`, `grammar`, `mtp`."""

    drafts: dict[str, DraftedTokens]

    @classmethod
    def of(cls, usage: Usage) -> DraftUsage | UnsetType:
        """Count the draft tokens of a request, or return UNSET without drafts."""
        if not usage.drafts:
            return UNSET
        return cls(
            {
                source: DraftedTokens(drafted_tokens=drafted, accepted_tokens=accepted)
                for source, (drafted, accepted) in sorted(usage.drafts.items())
            }
        )


def modules_of(options: RatoonOptions | None) -> ModulesOption | None:
    """Return the prompt modules that `options` name, or None."""
    return None if options is None else options.modules


def explain_of(
    options: RatoonOptions | None,
    parts: Callable[[], Iterable[PromptPart]] | None,
) -> Explain | None:
    """Return the comparison of prompts that `options` ask for, or None.

    `parts` returns the named parts of the prompt. `parts` is called only for a comparison. Without
    `parts` the prompt is compared as one part.
    """
    if options is None or not options.explain:
        return None
    found = None if parts is None else tuple(parts())
    return Explain(options.previous_id, found)


def ratoon_reply(
    usage: Usage | None, ignored: tuple[PassedOver, ...] = ()
) -> RatoonReply | UnsetType:
    """Write the cache miss, prompt modules and `ignored` fields, or UNSET if there are none."""
    miss = None if usage is None else usage.cache_miss
    modules = UNSET if usage is None else ModulesReply.of(usage)
    if miss is None and not ignored and modules is UNSET:
        return UNSET
    return RatoonReply(
        modules=modules, cache_miss=UNSET if miss is None else miss, ignored=ignored or UNSET
    )
