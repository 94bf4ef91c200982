"""The bodies and answers of `cachedContents` as Structs.

Elsewhere: what is stored (`cached.py`).
"""

from datetime import datetime
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from gateway.dialects.gemini.schema import GeminiPrefix

# `$` alone would also match before a final line break
Duration = Annotated[str, Meta(pattern=r"^[0-9]{1,9}(\.[0-9]{1,9})?s$(?!\n)")]
Instant = Annotated[datetime, Meta(tz=True)]


class Expiry(Struct, frozen=True, kw_only=True, rename="camel"):
    """The time at which a cached content expires, or its remaining duration, such as `300s`."""

    BEYOND_TYPES: ClassVar[dict[str, Any]] = {
        "anyOf": [{"required": ["ttl"]}, {"required": ["expireTime"]}]
    }
    ttl: Duration | None = None
    expire_time: Instant | None = None


class CachedContentRequest(GeminiPrefix, frozen=True, kw_only=True, rename="camel"):
    """The body that creates a cached content: the cached fields, the model, and the expiry."""

    model: str
    display_name: Annotated[str, Meta(max_length=128)] | None = None
    ttl: Duration | None = None
    expire_time: Instant | None = None
    cache_salt: Annotated[str, Meta(min_length=1)] | None = None


class Creation(Struct, frozen=True):
    """A request that creates a cached content, and the JSON of the fields to cache."""

    wire: CachedContentRequest
    prefix: Raw


class CachedUsage(Struct, frozen=True, kw_only=True, rename="camel"):
    """The number of cached tokens."""

    total_token_count: int


class CachedContent(Struct, frozen=True, kw_only=True, rename="camel"):
    """A cached content. Requests send its `name` in place of its fields."""

    name: str
    model: str
    display_name: str | UnsetType = UNSET
    create_time: datetime
    update_time: datetime
    expire_time: datetime
    usage_metadata: CachedUsage


class CachedContentList(Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of the tenant's cached contents, the oldest first."""

    cached_contents: list[CachedContent]
    next_page_token: str | UnsetType = UNSET


class Nothing(Struct, frozen=True):
    """The answer to a deletion."""
