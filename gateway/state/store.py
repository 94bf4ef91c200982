"""The protocol of every store of the state; one suite of contract tests runs against all of them.

Methods are coroutines. A missing id raises `NotFound`, a taken name raises `Conflict`, and a
store that does not answer, or cannot write, raises `Unavailable` (`gateway.errors`). Every change
is atomic, whoever else is changing things.

The protocol is in parts, so that users can name the one they need.

Knows: what can be asked of the state, and what may go wrong. Does not know: where it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.state.records import ApiKey, AuditEntry, Group, PublishedPrefix, Tenant, UsageRow

AUDIT_KEPT = 100_000  # older entries go


class Tenants(Protocol):
    """Tenants. Deleting one deletes its keys; its usage stays."""

    async def create_tenant(self, tenant: Tenant) -> None:
        """Add a tenant; Conflict when its id or name is taken, NotFound without its group."""
        ...

    async def list_tenants(self) -> list[Tenant]:
        """All tenants, oldest first."""
        ...

    async def get_tenant(self, tenant_id: str) -> Tenant:
        """One tenant by id."""
        ...

    async def update_tenant(self, tenant: Tenant) -> None:
        """Replace a tenant's record; Conflict for a taken name, NotFound without its group."""
        ...

    async def delete_tenant(self, tenant_id: str) -> None:
        """Remove a tenant and its keys."""
        ...


class Keys(Protocol):
    """Tenants' keys, by their digests."""

    async def create_key(self, key: ApiKey) -> None:
        """Add a key to an existing tenant; Conflict when its id or digest is taken."""
        ...

    async def list_keys(self, tenant_id: str) -> list[ApiKey]:
        """A tenant's keys, oldest first."""
        ...

    async def get_key(self, key_id: str) -> ApiKey:
        """One key by id."""
        ...

    async def update_key(self, key: ApiKey) -> None:
        """Replace a key's expiry and revocation; a revocation once stored stays.

        So a rotation that read the record before a revocation cannot bring the key back.
        """
        ...

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        """The key with this digest and its tenant; None when no such key was ever made."""
        ...


class Groups(Protocol):
    """Groups of tenants."""

    async def create_group(self, group: Group) -> None:
        """Add a group; Conflict when its id or name is taken."""
        ...

    async def list_groups(self) -> list[Group]:
        """All groups, oldest first."""
        ...

    async def get_group(self, group_id: str) -> Group:
        """One group by id."""
        ...

    async def update_group(self, group: Group) -> None:
        """Replace a group's record; Conflict when its new name is taken."""
        ...

    async def delete_group(self, group_id: str) -> None:
        """Remove a group; Conflict while a tenant or a live prefix belongs to it."""
        ...


class Prefixes(Protocol):
    """Published prefixes. A deleted one stays as a record, so that its version is never reused."""

    async def create_prefix(self, prefix: PublishedPrefix) -> None:
        """Add a prefix; Conflict when its id or (name, version) is taken, NotFound without its
        group.
        """
        ...

    async def list_prefixes(self) -> list[PublishedPrefix]:
        """All prefixes, deleted ones included, oldest first."""
        ...

    async def get_prefix(self, prefix_id: str) -> PublishedPrefix:
        """One prefix by id."""
        ...

    async def update_prefix(self, prefix: PublishedPrefix) -> None:
        """Replace a prefix's token count and deletion; a deletion once stored stays."""
        ...


class UsageLedger(Protocol):
    """Counters by tenant, key and day."""

    async def add_usage(self, rows: Sequence[UsageRow], *, batch: str) -> None:
        """Add the rows' counters to what is stored, all of them or none.

        `batch` is a new unique name. If the answer got lost, the same batch may be sent again
        within an hour, and is counted once.
        """
        ...

    async def usage(
        self,
        first_day: str,
        last_day: str,
        *,
        tenant_id: str | None = None,
        key_id: str | None = None,
    ) -> list[UsageRow]:
        """The rows from one day to another, both included, by day, tenant and key."""
        ...


class AuditLog(Protocol):
    """What operators did."""

    async def append_audit(self, entry: AuditEntry) -> None:
        """Add an entry; beyond AUDIT_KEPT the oldest go."""
        ...

    async def list_audit(self, *, limit: int, skip: int = 0) -> list[AuditEntry]:
        """At most `limit` entries, newest first, after leaving out the `skip` newest."""
        ...


class Store(Tenants, Keys, Groups, Prefixes, UsageLedger, AuditLog, Protocol):
    """All of the state."""

    async def close(self) -> None:
        """Close files and connections."""
        ...


class Listener(Protocol):
    """Who is told what other gateways change.

    That is `gateway.keyring.Keyring` and `gateway.published.Published`.
    """

    def forget(self, changed_id: str) -> None:
        """This tenant, one of its keys, or this published prefix has changed."""
        ...

    def reload(self) -> None:
        """Anything may have changed."""
        ...
