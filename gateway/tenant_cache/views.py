"""The bodies and answers of `/v1/cache` as Structs."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from engine.link.query_messages import MarkedPrefix
from gateway.views import TokensByTier

_ID = "prefix_"


class RequestOf(Struct, frozen=True, kw_only=True):
    """A request that is read but not answered: the `body` that the route `url` would get."""

    body: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
    url: Literal["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"] = (
        "/v1/chat/completions"
    )


class CacheProbe(Struct, frozen=True, kw_only=True):
    """The part of a request's prompt that the cache would serve if the request were sent now.

    `saved_ms` is the time to compute this part, or None if not measured. `tiers` is for tenants
    whom the operator allows to see it. `matched_tokens` is set if more of the prompt is cached than
    can be used. This occurs if the model has recurrent layers, and the cached part ends without a
    state.
    """

    object: Literal["cache.probe"] = "cache.probe"
    prompt_tokens: int
    cached_tokens: int
    matched_tokens: int | UnsetType = UNSET
    saved_ms: float | None
    tiers: TokensByTier | UnsetType = UNSET


class CacheWarmed(Struct, frozen=True, kw_only=True):
    """The result of warming a prompt: tokens found in the cache, and written for breakpoints."""

    object: Literal["cache.warmed"] = "cache.warmed"
    prompt_tokens: int
    cached_tokens: int
    cache_write_tokens: int


class CachePrefix(Struct, frozen=True, kw_only=True):
    """A marked prefix, with `expires_in_s` seconds left of the `ttl_s` after its last use."""

    id: str
    object: Literal["cache.prefix"] = "cache.prefix"
    tokens: int
    cached_tokens: int
    ttl_s: float
    expires_in_s: float
    tiers: TokensByTier | UnsetType = UNSET

    @classmethod
    def of(cls, prefix: MarkedPrefix, *, sees_tiers: bool) -> CachePrefix:
        """Write a marked prefix as its tenant may see it."""
        return cls(
            id=_ID + prefix.prefix_id.hex(),
            tokens=prefix.tokens,
            cached_tokens=prefix.tiers.total,
            ttl_s=prefix.seconds,
            expires_in_s=round(prefix.left, 3),
            tiers=TokensByTier.of(prefix.tiers) if sees_tiers else UNSET,
        )


class CachePrefixList(Struct, frozen=True, kw_only=True):
    """A tenant's marked prefixes, the most recently marked first."""

    object: Literal["list"] = "list"
    data: list[CachePrefix]


class CachePrefixDeleted(Struct, frozen=True, kw_only=True):
    """The result of deleting a marked prefix, with the number of tokens that left the cache."""

    id: str
    object: Literal["cache.prefix.deleted"] = "cache.prefix.deleted"
    deleted: Literal[True] = True
    tokens: int


def prefix_id(shown: str) -> bytes | None:
    """Parse the engine's prefix id from `shown`; return None if it is no prefix id."""
    try:
        return bytes.fromhex(shown.removeprefix(_ID)) if shown.startswith(_ID) else None
    except ValueError:
        return None
