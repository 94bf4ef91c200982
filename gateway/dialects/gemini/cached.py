"""The cached contents, stored under their names until they expire.

Cached contents and responses share one store and its limits. The KV of a cached content is retained
like the prefix of a breakpoint. If the KV has left the cache, the next request that names the
content computes the KV again. Contents with the same KV have names with the same beginning.
"""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, Raw, Struct

from gateway.dialects.gemini.cached_schema import (
    CachedContent,
    CachedContentList,
    CachedContentRequest,
    CachedUsage,
    Expiry,
)
from gateway.dialects.gemini.schema import GeminiPrefix
from gateway.dialects.stored_records import StoredRecords
from gateway.errors import BadRequest, Forbidden, NotFound
from gateway.http.body_memory import BodyLease
from gateway.state.records import StoredResponse

PREFIX = "cachedContents/"
_KEY_BYTES, _RANDOM_BYTES = 8, 8  # numbers of bytes in a content's name
_DEFAULT_S = 3600.0
_PAGE, _MOST_ON_PAGE = 50, 100


class Stored(Struct, frozen=True, kw_only=True):
    """The stored form of a cached content."""

    model: str
    display_name: str | None
    updated_at: float
    tokens: int
    salt: str | None
    prefix: Raw  # JSON of a `GeminiPrefix`


_STORED = msgspec.json.Decoder(Stored)
_PREFIX = msgspec.json.Decoder(GeminiPrefix)


@dataclass(frozen=True, slots=True)
class NamedContent:
    """A cached content with its record."""

    record: StoredResponse
    stored: Stored

    @property
    def name(self) -> str:
        """The resource's name."""
        return self.record.id

    def prefix(self) -> GeminiPrefix:
        """Parse the stored fields of the prompt."""
        return _PREFIX.decode(self.stored.prefix)

    def shown(self) -> CachedContent:
        """Write the cached content as an answer."""
        return CachedContent(
            name=self.name,
            model=f"models/{self.stored.model}",
            display_name=UNSET if self.stored.display_name is None else self.stored.display_name,
            create_time=_time(self.record.created_at),
            update_time=_time(self.stored.updated_at),
            expire_time=_time(self.record.expires_at),
            usage_metadata=CachedUsage(total_token_count=self.stored.tokens),
        )


@dataclass(frozen=True, slots=True)
class CachedContents:
    """Stores and finds the cached contents of all tenants."""

    records: StoredRecords

    async def find(self, tenant_id: str, name: str, body: BodyLease) -> NamedContent:
        """Find a cached content of the tenant; raise Forbidden if there is none.

        The memory counted for `body` grows by the bytes of the record.
        """
        record_id = PREFIX + name.removeprefix(PREFIX)
        try:
            record = await self.records.find(tenant_id, record_id, body)
        except NotFound:
            raise missing() from None
        return NamedContent(record, _STORED.decode(record.content))

    async def page(
        self, tenant_id: str, size: int | None, token: str | None, body: BodyLease
    ) -> CachedContentList:
        """List a page of the tenant's cached contents. `token` says where the page begins."""
        begin = int(token) if token else 0
        end = begin + min(size or _PAGE, _MOST_ON_PAGE)
        names = await self.records.store.response_ids(tenant_id, PREFIX, now=None)
        shown = []
        for name in names[begin:end]:
            before = body.size
            try:
                shown.append((await self.find(tenant_id, name, body)).shown())
            except Forbidden:
                continue  # the content has expired
            finally:
                body.shrink(before)
        more = str(end) if end < len(names) else UNSET
        return CachedContentList(cached_contents=shown, next_page_token=more)

    def seconds(self, expiry: Expiry | CachedContentRequest) -> float:
        """Return the seconds until a content expires; raise BadRequest for a time out of bounds."""
        most = self.records.bounds.response_ttl_s
        if not most:
            raise BadRequest("this server stores no cached contents", code="not_allowed")
        if expiry.ttl is not None and expiry.expire_time is not None:
            raise BadRequest("`ttl` and `expireTime` exclude each other", param="expireTime")
        param = "ttl" if expiry.expire_time is None else "expireTime"
        seconds = min(_DEFAULT_S, most)
        if expiry.ttl is not None:
            seconds = float(expiry.ttl[:-1])
        elif expiry.expire_time is not None:
            seconds = expiry.expire_time.timestamp() - self.records.clock()
        if not 0 < seconds <= most:
            raise BadRequest(
                f"a cached content expires in the future, at most {most:.0f} s from now",
                param=param,
            )
        return seconds

    async def keep(
        self, tenant_id: str, stored: Stored, seconds: float, key: bytes
    ) -> NamedContent:
        """Store a content under a new name; raise BadRequest if it is too large.

        `key` is the key of the last whole block of the content's KV.
        """
        spelled, name = msgspec.json.encode(stored), _beginning(key)
        name += secrets.token_hex(_RANDOM_BYTES)
        record = await self.records.keep(tenant_id, name, spelled, stored.updated_at, seconds)
        if record is None:
            raise BadRequest(
                f"a cached content has at most {self.records.bounds.max_response_bytes} bytes",
                param="contents",
            )
        return NamedContent(record, stored)

    async def renew(self, found: NamedContent, seconds: float) -> NamedContent:
        """Make a content expire in `seconds` from now; raise Forbidden if it is gone already."""
        now = self.records.clock()
        stored = msgspec.structs.replace(found.stored, updated_at=now)
        record = msgspec.structs.replace(
            found.record, expires_at=now + seconds, content=Raw(msgspec.json.encode(stored))
        )
        try:
            await self.records.store.replace_response(record, now=now)
        except NotFound:
            raise missing() from None
        return NamedContent(record, stored)

    async def delete(self, found: NamedContent) -> None:
        """Delete a content; raise Forbidden if it is gone already."""
        try:
            await self.records.drop(found.record.tenant_id, found.name)
        except NotFound:
            raise missing() from None

    async def has_any(self, tenant_id: str, key: bytes) -> bool:
        """Return whether the tenant has a content whose KV ends with the block of this key."""
        beginning, now = _beginning(key), self.records.clock()
        return bool(await self.records.store.response_ids(tenant_id, beginning, now=now))


def missing() -> Forbidden:
    """Make the error for a missing content, or a content of another tenant or salt.

    Gemini's status is 403, by which clients know that they must create the content again.
    """
    return Forbidden(
        "CachedContent not found (or permission denied)",
        code="cached_content_not_found",
        param="cachedContent",
    )


def _beginning(key: bytes) -> str:
    return PREFIX + key[:_KEY_BYTES].hex()


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
