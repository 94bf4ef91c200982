"""The stored records: tenants, keys, groups, published prefixes, answers, usage, audit.

A record is stored whole, as JSON. A new field needs a default for older records. Fields that must
be unique, or by which records are found, have indexes. Times are seconds since the epoch.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from msgspec.structs import replace

from engine.link.messages import Priority
from gateway.tenant_adapters import OwnAdapters, TenantAdapter
from gateway.tenant_limits import CacheQuota, Limits

EVERYONE = "all"  # scope of a prefix that every tenant may share
PUBLISHED = "published"  # name of the engine's flow that computes and owns published prefixes


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """The party that owns keys and pays. The gateway chooses `id`, the operator `name`."""

    id: str
    name: str
    created_at: float
    disabled: bool = False
    weight: float = 1.0
    group_id: str | None = None
    priority: Priority = "interactive"
    # target of the time between tokens, in milliseconds; 0: the engine's target
    target_itl_ms: float = 0.0
    limits: Limits = Limits()
    cache: CacheQuota = CacheQuota()
    usage_tiers: bool = False
    # whether meaningless variations of prompts are normalised
    canonical_prompts: bool = False
    adapters: tuple[TenantAdapter, ...] = ()
    max_own_adapters: OwnAdapters = 0

    @classmethod
    def new(cls, name: str, *, created_at: float) -> Tenant:
        """Make a tenant with a new random id, so that it inherits no other tenant's cache."""
        return cls(id=f"tn_{secrets.token_hex(8)}", name=name, created_at=created_at)

    def updated(self, new: Tenant) -> Tenant:
        """Return the tenant to store in place of this tenant: `new`, unchanged."""
        return new


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a tenant's key. The key is not stored: `digest` is its HMAC with the pepper."""

    id: str
    tenant_id: str
    digest: bytes
    hint: str  # the key's first and last characters, for display
    created_at: float
    expires_at: float | None = None  # time of expiry, set when the key was issued; None: never
    # time at which a rotated key ends; None: the key was not rotated
    retires_at: float | None = None
    revoked_at: float | None = None

    @property
    def ends_at(self) -> float | None:
        """The time at which the key ends, unless it is revoked before; None: never."""
        ends = [end for end in (self.expires_at, self.retires_at) if end is not None]
        return min(ends, default=None)

    def is_live(self, now: float) -> bool:
        """Return whether the key is valid at `now`."""
        ends_at = self.ends_at
        return self.revoked_at is None and (ends_at is None or now < ends_at)

    def retired(self, at: float) -> ApiKey:
        """Return this key with an end at the time `at`, or at its earlier end."""
        return replace(self, retires_at=at if self.retires_at is None else min(at, self.retires_at))

    def updated(self, new: ApiKey) -> ApiKey:
        """Return this key with the expiry of `new`. A revocation is never undone."""
        revoked_at = new.revoked_at if self.revoked_at is None else self.revoked_at
        return replace(
            self, expires_at=new.expires_at, retires_at=new.retires_at, revoked_at=revoked_at
        )


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A group of tenants that trust each other. A tenant belongs to at most one group."""

    id: str
    name: str
    created_at: float

    @classmethod
    def new(cls, name: str, *, created_at: float) -> Group:
        """Make a group with a random id, which no group had before."""
        return cls(id=f"gr_{secrets.token_hex(8)}", name=name, created_at=created_at)

    def updated(self, new: Group) -> Group:
        """Return the group to store in place of this group: `new`, unchanged."""
        return new


class PrefixSource(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a published prefix: a text, or a chat's messages, its tools, or both.

    The chat template is given messages (objects with `role` and `content`) and tools. The fields of
    a tool keep their order.
    """

    messages: list[dict[str, Any]] | None = None
    text: str | None = None
    tools: list[dict[str, Any]] | None = None


class PublishedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix that the operator registered for many tenants. (name, version) is unique."""

    id: str
    name: str
    version: int
    scope: str  # EVERYONE, or a group's id
    source: PrefixSource
    created_at: float
    # number of the prefix's tokens; None until the prefix has been tokenised
    tokens: int | None = None
    deleted_at: float | None = None

    @property
    def group_id(self) -> str | None:
        """The group that the prefix is for; None if the prefix is for everyone."""
        return None if self.scope == EVERYONE else self.scope

    def updated(self, new: PublishedPrefix) -> PublishedPrefix:
        """Return this prefix with the token count and deletion of `new`; a deletion stays.

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
    """A stored answer that its tenant may fetch, or continue, until `expires_at`."""

    id: str
    tenant_id: str
    created_at: float
    expires_at: float
    content: msgspec.Raw  # the answer, in JSON that only the answer's dialect reads


class ResponseRoom(msgspec.Struct, frozen=True, kw_only=True):
    """The limits in bytes for a response, for a tenant's responses, and for all responses."""

    of_one: int
    of_tenant: int
    of_all: int

    def has_room_for(self, size: int) -> bool:
        """Return whether a response of `size` bytes fits if no other response is stored."""
        return size <= min(self.of_one, self.of_tenant, self.of_all)


class ModuleSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's module schema. Its id is computed from its content."""

    id: str
    tenant_id: str
    created_at: float
    content: msgspec.Raw  # the schema, in JSON that only `gateway.prompts.modules` reads


class RegisteredEngine(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that gateways use, on any machine.

    The process that started an engine sends the engine's heartbeats. An engine that an operator
    added has no heartbeat, and stays registered until it is removed.
    """

    address: str  # address of the engine, in the form of `engine.link.address`
    added_at: float
    # time of the latest heartbeat, by its sender's clock; None: no heartbeats
    beat_at: float | None = None
    # digest of model and settings, in hex, as the process that started the engine reports it
    fingerprint: str | None = None


class ErasedTenant(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted tenant, and how many of its records were deleted from the state."""

    id: str
    name: str
    keys: int
    responses: int
    schemas: int = 0
    adapters: int = 0


class CacheFlush(msgspec.Struct, frozen=True, kw_only=True):
    """A flush of the cache that every engine must do, even if it is absent now.

    Ids of flushes are never reused.
    """

    id: str
    # id of the tenant whose blocks are dropped; None: the blocks of all tenants
    tenant_id: str | None
    at: float
    # seconds after which engines repeat the flush; None: they do not repeat it
    again_s: float | None = None
    erased: ErasedTenant | None = None  # None: no tenant was deleted
    # ids of flushes of the same erasure before this flush; engines may have done them already
    earlier_ids: tuple[str, ...] = ()

    @classmethod
    def new(
        cls,
        tenant_id: str | None,
        *,
        at: float,
        again_s: float | None = None,
        erased: ErasedTenant | None = None,
        earlier_ids: tuple[str, ...] = (),
    ) -> CacheFlush:
        """Make a flush with a random id, which no engine has done yet."""
        return cls(
            id=f"fl_{secrets.token_hex(8)}",
            tenant_id=tenant_id,
            at=at,
            again_s=again_s,
            erased=erased,
            earlier_ids=earlier_ids,
        )

    @property
    def second_id(self) -> str:
        """The id under which engines repeat the flush."""
        return f"{self.id}_again"


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A change made by an operator. `detail` has names and numbers, never keys or prompts."""

    time: float
    actor: str
    action: str
    target: str
    detail: dict[str, Any] = {}


class IsolationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The latest result of `ratoon verify-isolation`, without any key or prompt."""

    at: float  # seconds since the epoch
    verdict: str
    samples: int  # number of samples of each class in the timing test; 0: the test was left out
    report: str  # in Markdown
