"""The stored records: tenants, keys, groups, published prefixes, answers, usage, audit.

A record is stored whole, as JSON, so a new field only needs a default, with which older records
are read. Fields that must be unique, or by which records are found, are indexed beside them. Times
are seconds since the epoch.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from engine.link.messages import Priority
from gateway.tenant_limits import CacheQuota, Limits

EVERYONE = "all"  # the scope of a prefix that every tenant may share
PUBLISHED = "published"  # the engine's flow that computes and owns published prefixes


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """The party that holds keys and pays. `id` is made by the gateway, `name` by the operator."""

    id: str
    name: str
    created_at: float
    disabled: bool = False
    weight: float = 1.0
    group_id: str | None = None  # the group that it shares with, if any
    priority: Priority = "interactive"
    limits: Limits = Limits()
    cache: CacheQuota = CacheQuota()
    usage_tiers: bool = False  # its answers' usage says in which tiers cached tokens lay
    canonical_prompts: bool = False  # what varies without meaning is left out of its prompts

    @classmethod
    def new(cls, name: str, *, created_at: float) -> Tenant:
        """Make a tenant with a random id, which no tenant had: no tenant inherits its cache."""
        return cls(id=f"tn_{secrets.token_hex(8)}", name=name, created_at=created_at)

    def updated(self, new: Tenant) -> Tenant:
        """Return what replaces this tenant: `new`."""
        return new


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a tenant. The key itself is not stored: `digest` is its HMAC with the pepper."""

    id: str
    tenant_id: str
    digest: bytes
    hint: str  # first and last characters, for display
    created_at: float
    expires_at: float | None = None  # as it was issued
    retires_at: float | None = None  # if it was rotated: the end of the overlap
    revoked_at: float | None = None

    @property
    def ends_at(self) -> float | None:
        """The time at which the key ends, unless it is revoked before; None: never."""
        ends = [end for end in (self.expires_at, self.retires_at) if end is not None]
        return min(ends, default=None)

    def is_live(self, now: float) -> bool:
        """Tell whether the key is valid at `now`."""
        ends_at = self.ends_at
        return self.revoked_at is None and (ends_at is None or now < ends_at)

    def retired(self, at: float) -> ApiKey:
        """This key, invalid from `at` on, or from when it was to be before."""
        return replace(self, retires_at=at if self.retires_at is None else min(at, self.retires_at))

    def updated(self, new: ApiKey) -> ApiKey:
        """Give this key the expiry of `new`; a revocation is never undone."""
        revoked_at = new.revoked_at if self.revoked_at is None else self.revoked_at
        return replace(
            self, expires_at=new.expires_at, retires_at=new.retires_at, revoked_at=revoked_at
        )


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Tenants that trust each other. A tenant belongs to one at most (`Tenant.group_id`)."""

    id: str
    name: str
    created_at: float

    @classmethod
    def new(cls, name: str, *, created_at: float) -> Group:
        """Make a group with a random id, which no group had before."""
        return cls(id=f"gr_{secrets.token_hex(8)}", name=name, created_at=created_at)

    def updated(self, new: Group) -> Group:
        """Return what replaces this group: `new`."""
        return new


class PrefixSource(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a published prefix: messages of a chat, its tools, or both; or a text.

    Messages are what the chat template is given: objects with `role` and `content`. So are tools:
    objects whose fields stay in the order in which they came.
    """

    messages: list[dict[str, Any]] | None = None
    text: str | None = None
    tools: list[dict[str, Any]] | None = None


class PublishedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix that the operator registered for many tenants; (name, version) is unique."""

    id: str
    name: str
    version: int
    scope: str  # EVERYONE, or a group's id
    source: PrefixSource
    created_at: float
    tokens: int | None = None  # None until it has been tokenised
    deleted_at: float | None = None

    @property
    def group_id(self) -> str | None:
        """The group that it is for; None when it is for everyone."""
        return None if self.scope == EVERYONE else self.scope

    def updated(self, new: PublishedPrefix) -> PublishedPrefix:
        """Give this prefix the token count and deletion of `new`; a deletion is never undone.

        A deleted prefix keeps its name and version, but not its content.
        """
        deleted_at = new.deleted_at if self.deleted_at is None else self.deleted_at
        source = self.source if deleted_at is None else PrefixSource()
        return replace(self, source=source, tokens=new.tokens, deleted_at=deleted_at)

    @classmethod
    def new(
        cls,
        name: str,
        version: int,
        scope: str,
        source: PrefixSource,
        *,
        created_at: float,
        tokens: int | None = None,
    ) -> PublishedPrefix:
        """Make a prefix with a random id, which no prefix had before."""
        return cls(
            id=f"px_{secrets.token_hex(8)}",
            name=name,
            version=version,
            scope=scope,
            source=source,
            created_at=created_at,
            tokens=tokens,
        )


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that its tenant may ask for again, or continue, until `expires_at`."""

    id: str
    tenant_id: str
    created_at: float
    expires_at: float
    content: msgspec.Raw  # JSON, which its dialect alone can read


class ResponseRoom(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of stored responses that there may be, as they are stored."""

    of_one: int
    of_tenant: int
    of_all: int

    def has_room_for(self, size: int) -> bool:
        """Tell whether a response of `size` bytes fits if nothing else is stored."""
        return size <= min(self.of_one, self.of_tenant, self.of_all)


class RegisteredEngine(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that gateways are to drive, wherever it runs.

    Who started it says again and again that it lives; one that an operator added by hand has no
    heartbeat, and stays until it is removed.
    """

    address: str  # as `engine.link.address` has it
    added_at: float
    beat_at: float | None = None  # the last heartbeat, by the clock of who sent it; None: has none
    fingerprint: str | None = None  # of what it serves, in hex, as who started it has seen it


class CacheFlush(msgspec.Struct, frozen=True, kw_only=True):
    """The flush that engines are to do, whenever they come back. Its id is never used again."""

    id: str
    tenant_id: str | None  # None: everything
    at: float

    @classmethod
    def new(cls, tenant_id: str | None, *, at: float) -> CacheFlush:
        """Make a flush with a random id, which no engine has done."""
        return cls(id=f"fl_{secrets.token_hex(8)}", tenant_id=tenant_id, at=at)


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """The use that was counted. None means not measured, which is not 0.

    `cached_tokens` are the prompt tokens that the cache saved, each prompt once; `computed_tokens`
    those that were computed, by each choice.
    `cache_read_tokens` are those of `cache_written_tokens` that some request has found since, on
    whatever day.
    """

    requests: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    engine_ms: float | None = None  # time of the accelerator
    saved_ms: float | None = None  # prefill time saved, by the measured rates
    cache_written_tokens: int = 0  # put into the cache, and not there before
    cache_read_tokens: int = 0

    def plus(self, other: Counters) -> Counters:
        """Add both."""
        total = asdict(self)
        for name, more in other.known().items():
            total[name] = (total[name] or 0) + more
        return Counters(**total)

    def known(self) -> dict[str, Any]:
        """Return the counters that were measured, by name."""
        values = asdict(self)
        return {name: value for name, value in values.items() if value is not None}


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one key of a tenant on one day, `YYYY-MM-DD` in UTC."""

    tenant_id: str
    key_id: str
    day: str
    counters: Counters


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The change that an operator made. `detail` has names and numbers; keys and prompts never."""

    time: float
    actor: str
    action: str  # such as "tenant.create"
    target: str  # the id of what was changed
    detail: dict[str, Any] = {}


class IsolationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last result of `ratoon verify-isolation`. It holds no key and no prompt."""

    at: float  # seconds since the epoch
    verdict: str
    samples: int  # of each class in the timing test; 0: it was left out
    report: str  # Markdown
