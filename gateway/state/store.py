"""The protocol of every store of the state; one suite of contract tests runs against all of them.

Methods are coroutines. A missing id raises `NotFound`, a taken name raises `Conflict`, and a
store that does not answer, or cannot write, raises `Unavailable` (`gateway.errors`). Every change
is atomic, whatever other processes change meanwhile.

The protocol is in parts, so that users can name the one they need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from msgspec.json import decode
from msgspec.structs import replace

from gateway.errors import Conflict, NotFound
from gateway.state.records import (
    ApiKey,
    AuditEntry,
    CacheFlush,
    Group,
    IsolationReport,
    PublishedPrefix,
    RegisteredEngine,
    ResponseRoom,
    StoredResponse,
    Tenant,
    UsageRow,
)

Record = Tenant | ApiKey | Group | PublishedPrefix
R = TypeVar("R", Tenant, ApiKey, Group, PublishedPrefix)
D = TypeVar("D", Tenant, Group)  # what can be deleted

AUDIT_KEPT = 100_000  # older entries go
_NAMES: dict[type[Record], str] = {
    Tenant: "tenant",
    ApiKey: "key",
    Group: "group",
    PublishedPrefix: "prefix",
}


class Records(Protocol):
    """Tenants, their keys, groups and published prefixes: the records that have an id.

    A tenant and a prefix may belong to a group, a key belongs to a tenant, and these must be there.
    """

    async def create(self, record: R) -> None:
        """Add a record; Conflict when its id, name, digest or version is taken."""
        ...

    async def every(self, kind: type[R]) -> list[R]:
        """List all records of a kind, oldest first; deleted prefixes too."""
        ...

    async def get(self, kind: type[R], record_id: str) -> R:
        """Find one record by id."""
        ...

    async def update(self, kind: type[R], record_id: str, change: Callable[[R], R]) -> R:
        """Replace a record by what `change` makes of it as it is stored; gives what is stored then.

        Nothing else changes the record meanwhile; `change` may be called again, and what it raises
        is raised. Only what an update may change is replaced (`updated`): a revocation or deletion
        once stored stays. Conflict for a taken name. A tenant that is disabled loses its stored
        responses.
        """
        ...

    async def delete(self, kind: type[D], record_id: str) -> None:
        """Remove a tenant with its keys and stored responses, or a group; its usage stays.

        Conflict while a tenant or a live prefix belongs to the group. A deleted prefix stays as a
        record, so that its version is never used again.
        """
        ...

    async def list_keys(self, tenant_id: str) -> list[ApiKey]:
        """List a tenant's keys, oldest first."""
        ...

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        """Find the key with this digest and its tenant; None when no such key was ever made."""
        ...


class ResponseStore(Protocol):
    """Stored responses, each its tenant's alone: another's is as one that was never there."""

    async def keep_response(self, response: StoredResponse, room: ResponseRoom) -> bool:
        """Store it; False if it has no room even alone. NotFound without its tenant, Conflict.

        The oldest of its tenant go until these fit into `room.of_tenant`, then the oldest of the
        tenant that has the most bytes, until all fit. A disabled tenant counts as not there.
        """
        ...

    async def find_response(
        self, tenant_id: str, response_id: str, *, now: float
    ) -> StoredResponse:
        """Find one of a tenant's; NotFound also when it has expired."""
        ...

    async def drop_response(self, tenant_id: str, response_id: str, *, now: float) -> None:
        """Remove one; raises as `find_response`."""
        ...

    async def drop_expired_responses(self, *, now: float) -> None:
        """Remove what has expired, of all tenants; some of it if there is much."""
        ...


class UsageStore(Protocol):
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
        """List the rows from one day to another, both included, by day, tenant and key."""
        ...


class AuditLog(Protocol):
    """The log of what operators did."""

    async def append_audit(self, entry: AuditEntry) -> None:
        """Add an entry; beyond AUDIT_KEPT the oldest go."""
        ...

    async def list_audit(self, *, limit: int, skip: int = 0) -> list[AuditEntry]:
        """List at most `limit` entries, newest first, without the `skip` newest."""
        ...


class IsolationReports(Protocol):
    """The last report on the isolation of tenants."""

    async def keep_isolation_report(self, report: IsolationReport) -> None:
        """Put it in the place of the one before."""
        ...

    async def isolation_report(self) -> IsolationReport | None:
        """Return the last one; None before the first."""
        ...


class EngineRegistry(Protocol):
    """The engines that gateways find here as they come and go."""

    async def register_engine(self, engine: RegisteredEngine) -> None:
        """Add it, or put it in the place of the one with its address, whose `added_at` stays."""
        ...

    async def forget_engine(self, address: str) -> None:
        """Remove it; NotFound when it is not there."""
        ...

    async def registered_engines(self) -> list[RegisteredEngine]:
        """List all of them, by address."""
        ...


class FlushLog(Protocol):
    """The flushes that engines are to have done: of each tenant the last, also of deleted ones."""

    async def add_flush(self, flush: CacheFlush) -> None:
        """Add it in the place of the one of its tenant; of everything: in the place of all."""
        ...

    async def flushes(self) -> list[CacheFlush]:
        """List all of them, the oldest first."""
        ...

    async def fold_flushes(self, into: CacheFlush, tenant_ids: Sequence[str]) -> None:
        """Put `into`, of everything, in the place of these tenants' flushes; others stay.

        Nothing happens where everything was flushed after it.
        """
        ...


class Store(
    Records,
    ResponseStore,
    UsageStore,
    AuditLog,
    IsolationReports,
    EngineRegistry,
    FlushLog,
    Protocol,
):
    """All of the state."""

    async def close(self) -> None:
        """Close files and connections."""
        ...


class Listener(Protocol):
    """Listeners that are notified of other gateways' changes.

    Such as `gateway.auth.keyring.Keyring` and `gateway.sharing.published.Published`.
    """

    def forget(self, changed_id: str) -> None:
        """Forget this tenant, one of its keys, this published prefix or this flush: it changed."""
        ...

    def reload(self) -> None:
        """Reload: anything may have changed."""
        ...


def missing(kind: type[Record]) -> NotFound:
    """Make the error where a record of this kind is not there."""
    return NotFound(f"no such {_NAMES[kind]}")


def missing_engine() -> NotFound:
    """Make the error where no engine is registered at an address."""
    return NotFound("no such engine")


def since(engine: RegisteredEngine, before: bytes | None) -> RegisteredEngine:
    """Keep the time when the record `before` it at its address was added; None: there is none."""
    if before is None:
        return engine
    return replace(engine, added_at=decode(before, type=RegisteredEngine).added_at)


def missing_response() -> NotFound:
    """Make the error where a stored response is not there, or not this tenant's."""
    return NotFound("there is no such response", code="response_not_found", param="response_id")


def live_group(record: Record) -> str | None:
    """Return the group that cannot be deleted while this record is as it is; None: none."""
    if isinstance(record, PublishedPrefix) and record.deleted_at is not None:
        return None
    return record.group_id if isinstance(record, Tenant | PublishedPrefix) else None


def taken() -> Conflict:
    """Make the error where what must be unique is not."""
    return Conflict("the name or id is taken")


def has_members() -> Conflict:
    """Make the error where a group cannot be deleted."""
    return Conflict("the group still has tenants or published prefixes")
