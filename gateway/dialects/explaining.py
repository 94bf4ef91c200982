"""The extension `ratoon` of all dialects: cache misses, prompt modules, ignored fields, and drafts.

A request may ask why its prompt missed the cache. Fields that have an effect only at other servers
are reported as ignored.

Knows: the fields of requests and answers. Does not know: how a dialect names a prompt's parts, or
how prompts are compared.
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
from gateway.requests.request_metrics import Usage

AnswerId = Annotated[str, Meta(min_length=1, max_length=128)]


class RatoonOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ratoon's request fields: they ask why the prompt missed the cache, or name prompt modules.

    The prompt is compared with the prompt of the answer `previous_id`, or else with the tenant's
    most similar recent prompt.
    """

    explain: bool | None = None
    previous_id: AnswerId | None = None
    modules: ModulesOption | None = None


class RatoonReply(Struct, frozen=True, kw_only=True):
    """Ratoon's answer fields: why the prompt missed the cache, its prompt modules, the ignored
    request fields.
    """

    modules: ModulesReply | UnsetType = UNSET
    cache_miss: CacheMiss | UnsetType = UNSET
    ignored: tuple[PassedOver, ...] | UnsetType = UNSET


class ModulesReply(Struct, frozen=True, kw_only=True):
    """The prompt modules used; all attended to the head, those listed `together` to each other.

    Of the modules' `tokens`, the `cached_tokens` were not computed for this request.
    """

    schema: str
    used: tuple[str, ...]
    together: tuple[tuple[str, ...], ...]
    tokens: int
    cached_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> ModulesReply | UnsetType:
        """Return the prompt modules that a request used; UNSET if the request used none."""
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
    """The number of tokens drafted from one source, and the number of these that were accepted."""

    drafted_tokens: int
    accepted_tokens: int


class DraftUsage(Struct, frozen=True):
    """Drafts of the answer by source: `own`, `tree`, `answers`, `prediction`, `grammar`, `mtp`."""

    drafts: dict[str, DraftedTokens]

    @classmethod
    def of(cls, usage: Usage) -> DraftUsage | UnsetType:
        """Count the drafted tokens of a request; UNSET if nothing was drafted."""
        if not usage.drafts:
            return UNSET
        return cls(
            {
                source: DraftedTokens(drafted_tokens=drafted, accepted_tokens=accepted)
                for source, (drafted, accepted) in sorted(usage.drafts.items())
            }
        )


def modules_of(options: RatoonOptions | None) -> ModulesOption | None:
    """Return the prompt modules that `options` name; None if they name none."""
    return None if options is None else options.modules


def explain_of(
    options: RatoonOptions | None,
    parts: Callable[[], Iterable[PromptPart]] | None,
) -> Explain | None:
    """Return the comparison of prompts that `options` ask for; None if they ask for none.

    `parts`, called only for a comparison, names the prompt's parts; without `parts` the prompt is
    compared as one part.
    """
    if options is None or not options.explain:
        return None
    found = None if parts is None else tuple(parts())
    return Explain(options.previous_id, found)


def ratoon_reply(
    usage: Usage | None, ignored: tuple[PassedOver, ...] = ()
) -> RatoonReply | UnsetType:
    """Write the cache miss and prompt modules of `usage`, and the `ignored` fields; UNSET if all
    are absent.
    """
    miss = None if usage is None else usage.cache_miss
    modules = UNSET if usage is None else ModulesReply.of(usage)
    if miss is None and not ignored and modules is UNSET:
        return UNSET
    return RatoonReply(
        modules=modules, cache_miss=UNSET if miss is None else miss, ignored=ignored or UNSET
    )
