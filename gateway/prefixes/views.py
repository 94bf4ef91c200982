"""Bodies and answers of `/v1/cache`, as Structs.

Knows: names and types. Does not know: the requests that are looked up, which dialects read.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from engine.link.query_messages import MarkedPrefix
from gateway.views import TokensByTier

_ID = "prefix_"


class RequestOf(Struct, frozen=True, kw_only=True):
    """A request as a route would be sent it: the body of `url`. It is not answered."""

    body: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
    url: Literal["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"] = (
        "/v1/chat/completions"
    )


class CacheProbe(Struct, frozen=True, kw_only=True):
    """The part of a request that would be found in the cache if it were sent now.

    `saved_ms` is what computing that would take; None: nothing has been measured. `tiers` is for
    those whom the operator lets see them.
    """

    object: Literal["cache.probe"] = "cache.probe"
    prompt_tokens: int
    cached_tokens: int
    saved_ms: float | None
    tiers: TokensByTier | UnsetType = UNSET


class CacheWarmed(Struct, frozen=True, kw_only=True):
    """The prompt is in the cache: what of it was there, and was put there for its marks."""

    object: Literal["cache.warmed"] = "cache.warmed"
    prompt_tokens: int
    cached_tokens: int
    cache_write_tokens: int


class CachePrefix(Struct, frozen=True, kw_only=True):
    """A marked prefix: `ttl_s` seconds are left after each use, `expires_in_s` are left now."""

    id: str
    object: Literal["cache.prefix"] = "cache.prefix"
    tokens: int
    cached_tokens: int
    ttl_s: float
    expires_in_s: float
    tiers: TokensByTier | UnsetType = UNSET

    @classmethod
    def of(cls, prefix: MarkedPrefix, *, sees_tiers: bool) -> CachePrefix:
        """Write it as the tenant that marked it is shown it."""
        return cls(
            id=_ID + prefix.prefix_id.hex(),
            tokens=prefix.tokens,
            cached_tokens=prefix.tiers.total,
            ttl_s=prefix.seconds,
            expires_in_s=round(prefix.left, 3),
            tiers=TokensByTier.of(prefix.tiers) if sees_tiers else UNSET,
        )


class CachePrefixList(Struct, frozen=True, kw_only=True):
    """A tenant's marked prefixes, the one marked last first."""

    object: Literal["list"] = "list"
    data: list[CachePrefix]


class CachePrefixDeleted(Struct, frozen=True, kw_only=True):
    """The prefix is retained no more, and so many of its tokens have left the cache."""

    id: str
    object: Literal["cache.prefix.deleted"] = "cache.prefix.deleted"
    deleted: Literal[True] = True
    tokens: int


def prefix_id(shown: str) -> bytes | None:
    """Read the engine's id from `shown`; None: nothing is shown like that."""
    try:
        return bytes.fromhex(shown.removeprefix(_ID)) if shown.startswith(_ID) else None
    except ValueError:
        return None
