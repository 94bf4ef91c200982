"""API keys: issued, shown once, stored as digests, rotated, revoked, and turned into callers.

A key is `sk-` and 256 bits in url-safe base64. The bits are 192 random bits and their tag, which is
made with the pepper. With that much entropy one fast keyed hash is enough. The store holds
HMAC-SHA256(pepper, key). Digests cannot be chosen without the pepper, so the time of a lookup tells
an attacker nothing.

A key with a valid tag (`is_marked`) cannot be made up. Older keys have no tag. Keys without a tag
that were never found before are looked up only a few at a time. A flood of made-up keys therefore
takes little of the store's time and delays no other key.

Looked-up keys are remembered for a few seconds, so that authentication costs microseconds. A change
takes effect at once if it is made through this keyring, or if the keyring is notified of it
(`forget`). Any other change takes effect after IDENTITY_TTL_S at the latest. Running requests are
checked again (`running_requests`). While the store is unavailable, and only then, keys that were
valid within the last OUTAGE_TTL_S are still accepted. Any other key gets Unavailable, not
Unauthenticated. If the state is damaged or gone, all remembered keys are forgotten.
"""

import asyncio
import base64
import hashlib
import hmac
import math
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from gateway.auth.ttl_cache import TtlCache
from gateway.caller import Caller
from gateway.errors import Conflict, Forbidden, StateLost, Unauthenticated, Unavailable
from gateway.state.records import ApiKey, Tenant
from gateway.state.store import Store
from gateway.views import view_of

KEY_PREFIX = "sk-"
KEY_BYTES = 32
IDENTITY_TTL_S = 3.0
OUTAGE_TTL_S = 60.0
RANDOM_BYTES = 24
# maximum number of simultaneous lookups of keys that have no tag and were never found
STRANGE_AT_ONCE = 4
REFUSED = "the API key is missing or not valid"  # the same message for every reason

Identity = tuple[ApiKey, Tenant]

_WELL_FORMED = re.compile(r"sk-[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True, repr=False)
class IssuedKey:
    """A new key and its record. `secret` is the key itself, which is stored nowhere."""

    secret: str
    record: ApiKey

    def __repr__(self) -> str:
        return f"IssuedKey(secret=********, id={self.record.id!r})"


@dataclass(frozen=True, slots=True)
class PresentedKey:
    """The digest of a request's well-formed key, and whether the key's tag is valid."""

    digest: bytes
    is_marked: bool


def key_digest(pepper: bytes, key: str) -> bytes:
    """Compute HMAC-SHA256(pepper, key), which is stored and compared in place of the key."""
    return hmac.digest(pepper, key.encode(), hashlib.sha256)


class Keyring:
    """The API keys of one store. Used in one event loop.

    `clock` returns seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        pepper: bytes,
        clock: Callable[[], float] = time.time,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._pepper = pepper
        self._clock = clock
        # Valid and invalid keys have separate caches, so that a flood of wrong keys evicts no good
        # keys.
        self._known: TtlCache[bytes, Identity] = TtlCache(IDENTITY_TTL_S, monotonic)
        self._unknown: TtlCache[bytes, bool] = TtlCache(IDENTITY_TTL_S, monotonic)
        self._while_away: TtlCache[bytes, Identity] = TtlCache(OUTAGE_TTL_S, monotonic)
        self._issued: TtlCache[bytes, bool] = TtlCache(math.inf, monotonic)
        self._strange = asyncio.Semaphore(STRANGE_AT_ONCE)
        self._changes = 0

    def digest(self, key: str) -> bytes:
        """Compute the digest under which the store has `key`, 32 bytes."""
        return key_digest(self._pepper, key)

    def key_with_mark(self, bits: bytes) -> str:
        """Make a key from RANDOM_BYTES bytes and their tag, an HMAC-SHA256 cut to 64 bits."""
        mark = self.digest(f"mark\0{bits.hex()}")
        return key_of(bits + mark[: KEY_BYTES - RANDOM_BYTES])

    async def issue(
        self, tenant_id: str, *, expires_at: float | None = None, bits: bytes | None = None
    ) -> IssuedKey:
        """Issue a key for an existing tenant; raise NotFound for an unknown tenant.

        `bits` are RANDOM_BYTES bytes to use in place of random bytes. Raises Conflict if this key
        exists already.
        """
        secret = self.key_with_mark(bits or secrets.token_bytes(RANDOM_BYTES))
        record = ApiKey(
            id=f"key_{secrets.token_hex(8)}",
            tenant_id=tenant_id,
            digest=self.digest(secret),
            hint=f"{secret[:7]}...{secret[-4:]}",
            created_at=self._clock(),
            expires_at=expires_at,
        )
        await self._store.create(record)
        self._issued.put(record.digest, True)
        return IssuedKey(secret, record)

    async def rotate(self, key_id: str, *, overlap_s: float) -> IssuedKey:
        """Issue a key's successor. The old key expires after `overlap_s` seconds (0: at once).

        The successor has the old key's original lifetime, even if a rotation has shortened the old
        key's life. The successor is stored first, so a crash in between leaves both keys valid.
        Raises NotFound, or Conflict if the key is no longer valid.
        """
        old = await self._store.get(ApiKey, key_id)
        now = self._clock()
        if not old.is_live(now):
            raise Conflict("the key is revoked or expired; issue a new one")
        issued = await self.issue(old.tenant_id, expires_at=_same_life(old, now))
        await self._store.update(ApiKey, key_id, lambda key: key.retired(now + overlap_s))
        self.forget(old.tenant_id)
        return issued

    async def revoke(self, key_id: str) -> None:
        """Revoke a key at once. Revoking a revoked key changes nothing."""
        now = self._clock()
        key = await self._store.update(ApiKey, key_id, lambda key: replace(key, revoked_at=now))
        self.forget(key.tenant_id)

    async def identify(self, key: str) -> Caller:
        """Return the caller whose key is `key`.

        Raises Unauthenticated for a malformed, unknown, revoked or expired key, always with the
        same message. A malformed key is refused before any I/O. Raises Forbidden for a valid key of
        a disabled tenant. Raises Unavailable if the store does not answer and the key is not
        remembered.
        """
        presented = self.read(key)
        return await self.check(presented.digest, may_be_made_up=not presented.is_marked)

    def read(self, key: str) -> PresentedKey:
        """Check a key's form and tag, without I/O, and return its digest.

        Raises Unauthenticated for a malformed key.
        """
        if not _WELL_FORMED.fullmatch(key):
            raise Unauthenticated(REFUSED)
        bits = base64.urlsafe_b64decode(f"{key.removeprefix(KEY_PREFIX)}=")
        is_marked = hmac.compare_digest(key, self.key_with_mark(bits[:RANDOM_BYTES]))
        return PresentedKey(self.digest(key), is_marked)

    async def check(self, digest: bytes, *, may_be_made_up: bool = False) -> Caller:
        """Return the caller whose key has this digest; raise the errors of `identify`."""
        identity = await self._find(digest, may_be_made_up)
        if identity is None or not identity[0].is_live(self._clock()):
            raise Unauthenticated(REFUSED)
        record, tenant = identity
        if tenant.disabled:
            raise Forbidden("the tenant of this API key is disabled", code="tenant_disabled")
        return view_of(Caller, tenant, tenant_id=tenant.id, key_id=record.id)

    def forget(self, changed_id: str) -> None:
        """Forget the remembered lookups of a tenant's keys, since the tenant has changed."""
        self._known.discard(lambda identity: identity[1].id == changed_id)
        self._while_away.discard(lambda identity: identity[1].id == changed_id)
        self._forget_unknown()

    def reload(self) -> None:
        """Forget all remembered lookups, since notices of changes may have been lost."""
        self._known.clear()
        self._forget_unknown()

    def _forget_unknown(self) -> None:
        self._changes += 1
        self._unknown.clear()

    async def _find(self, digest: bytes, may_be_made_up: bool) -> Identity | None:
        known = self._known.get(digest)
        if known is not None:
            return known
        if self._unknown.get(digest):
            return None
        if not may_be_made_up or self._issued.get(digest):
            return await self._look_up(digest)
        async with self._strange:
            # Other requests may have looked up the same key while this request waited.
            known = self._known.get(digest)
            return known or (None if self._unknown.get(digest) else await self._look_up(digest))

    async def _look_up(self, digest: bytes) -> Identity | None:
        changes = self._changes
        try:
            found = await self._store.find_by_digest(digest)
        except StateLost:
            self._known.clear()  # the state that comes back may lack these callers
            self._while_away.clear()
            raise
        except Unavailable:
            while_away = self._while_away.get(digest)
            if while_away is None:
                raise
            return while_away
        if found is not None:  # the key was issued, even if its record has changed meanwhile
            self._issued.put(digest, True)
        # `found` is out of date if a key or tenant has changed during the lookup
        if changes == self._changes:
            self._remember(digest, found)
        return found

    def _remember(self, digest: bytes, found: Identity | None) -> None:
        if found is None:
            self._unknown.put(digest, True)
            self._while_away.remove(digest)
            self._issued.remove(digest)
        else:
            self._known.put(digest, found)
            self._while_away.put(digest, found)


def key_of(bits: bytes) -> str:
    """Write KEY_BYTES bytes as an API key."""
    return KEY_PREFIX + base64.urlsafe_b64encode(bits).rstrip(b"=").decode()


def _same_life(old: ApiKey, now: float) -> float | None:
    return None if old.expires_at is None else now + (old.expires_at - old.created_at)
