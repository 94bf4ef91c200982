"""The extension `ratoon` of every dialect: a request asks why it missed, and its answer says so.

Knows: the fields of both. Does not know: how a dialect names its parts, or how they are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.diagnosis.cache_miss import CacheMiss
from gateway.diagnosis.comparison import Explain
from gateway.diagnosis.parts import PromptPart
from gateway.usage.request_metrics import Usage

AnswerId = Annotated[str, Meta(min_length=1, max_length=128)]


class RatoonOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An extension: whether the answer says why its prompt missed the cache.

    It is compared with the prompt of the answer that is named, or else with the tenant's most
    similar recent one.
    """

    explain: bool | None = None
    previous_id: AnswerId | None = None


class RatoonReply(Struct, frozen=True, kw_only=True):
    """An extension: what the request asked about the cache."""

    cache_miss: CacheMiss


def explain_of(
    options: RatoonOptions | None,
    parts: Callable[[], Iterable[PromptPart]] | None,
) -> Explain | None:
    """What `options` ask for. `parts` are found only where they are needed.

    Without `parts` the prompt is one.
    """
    if options is None or not options.explain:
        return None
    found = None if parts is None else tuple(parts())
    return Explain(options.previous_id, found)


def ratoon_reply(usage: Usage) -> RatoonReply | UnsetType:
    """What is said of `usage`, where it was asked for."""
    return UNSET if usage.cache_miss is None else RatoonReply(cache_miss=usage.cache_miss)
