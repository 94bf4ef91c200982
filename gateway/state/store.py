"""The protocol of every store of the state. One contract test suite runs against all stores.

Methods are coroutines. A missing id raises `NotFound`, and a taken name raises `Conflict`. A store
that does not answer, or cannot write, raises `Unavailable` (`gateway.errors`). Every change is
atomic, even if other processes change the state meanwhile. The protocol has parts, so that each
user can name the part that it needs.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from msgspec.json import decode
from msgspec.structs import replace

from gateway.state.records import (
    ApiKey,
    AuditEntry,
    CacheFlush,
    Group,
    IsolationReport,
    ModuleSchema,
    PublishedPrefix,
    RegisteredEngine,
    ResponseRoom,
    StoredResponse,
    Tenant,
)
from gateway.state.usage_records import UsageRow

Record = Tenant | ApiKey | Group | PublishedPrefix
R = TypeVar("R", Tenant, ApiKey, Group, PublishedPrefix)
D = TypeVar("D", Tenant, Group)  # records that can be deleted

MOST_SCHEMAS = 32
AUDIT_KEPT = 100_000  # maximum number of stored audit entries; older entries are removed


class Records(Protocol):
    """The records that have an id: tenants, their keys, groups and published prefixes.

    A tenant and a prefix may belong to a group, and a key belongs to a tenant. The group and the
    tenant must exist.
    """

    async def create(self, record: R) -> None:
        """Add a record; raise Conflict if its id, name, digest or version is taken."""
        ...

    async def every(self, kind: type[R]) -> list[R]:
        """List all records of a kind, the oldest first, including deleted prefixes."""
        ...

    async def get(self, kind: type[R], record_id: str) -> R:
        """Return the record with this id."""
        ...

    async def update(self, kind: type[R], record_id: str, change: Callable[[R], R]) -> R:
        """Replace a stored record by the record that `change` makes of it; return the new record.

        Nothing else changes the record meanwhile. `change` may be called several times, and its
        errors are raised. The record's method `updated` decides which fields are replaced: a stored
        revocation or deletion stays. Raises Conflict for a taken name. Disabling a tenant removes
        its stored responses.
        """
        ...

    async def delete(self, kind: type[D], record_id: str) -> None:
        """Remove a group, or a tenant with its keys and stored responses. Usage counts stay.

        Raises Conflict while a tenant or a live prefix belongs to the group. A deleted prefix stays
        as a record, so that its version is never used again.
        """
        ...

    async def list_keys(self, tenant_id: str) -> list[ApiKey]:
        """List a tenant's keys, the oldest first."""
        ...

    async def find_by_digest(self, digest: bytes) -> tuple[ApiKey, Tenant] | None:
        """Return the key with this digest and its tenant; None if no such key was ever issued."""
        ...


class ResponseStore(Protocol):
    """The stored responses of tenants. Another tenant's response counts as missing."""

    async def keep_response(self, response: StoredResponse, room: ResponseRoom) -> bool:
        """Store a response; return False if it exceeds the room for all responses.

        To make room, the tenant's oldest responses are removed until they fit into
        `room.of_tenant`. Then the oldest responses of the tenant with the most bytes are removed
        until all fit. A disabled tenant counts as missing.
        """
        ...

    async def find_response(
        self, tenant_id: str, response_id: str, *, now: float
    ) -> StoredResponse:
        """Return a tenant's response; raise NotFound for a missing or expired response."""
        ...

    async def replace_response(self, response: StoredResponse, *, now: float) -> None:
        """Replace a tenant's response by a response with the same id and about the same size.

        Raises NotFound for a missing or expired response.
        """
        ...

    async def response_ids(self, tenant_id: str, beginning: str, *, now: float | None) -> list[str]:
        """List the ids of a tenant's responses that start with `beginning`, the oldest first.

        If `now` is None, ids of expired responses may be listed too, which takes less work.
        """
        ...

    async def drop_response(self, tenant_id: str, response_id: str, *, now: float) -> None:
        """Remove a tenant's response; raise NotFound for a missing or expired response."""
        ...

    async def count_responses(self, tenant_id: str) -> int:
        """Count a tenant's stored responses, including expired responses before their removal."""
        ...

    async def drop_expired_responses(self, *, now: float) -> None:
        """Remove expired responses of all tenants, only some of them if there are many."""
        ...


class SchemaStore(Protocol):
    """The tenants' module schemas. Another tenant's schema counts as missing."""

    async def keep_schema(self, schema: ModuleSchema) -> ModuleSchema:
        """Store a schema, unless the tenant has this schema; return the stored schema.

        Raises Conflict if the tenant has MOST_SCHEMAS other schemas. A disabled tenant counts as
        missing.
        """
        ...

    async def find_schema(self, tenant_id: str, schema_id: str) -> ModuleSchema:
        """Return a tenant's schema."""
        ...

    async def schema_ids(self, tenant_id: str) -> list[str]:
        """List the ids of a tenant's schemas, in any order."""
        ...

    async def drop_schema(self, tenant_id: str, schema_id: str) -> None:
        """Remove a tenant's schema. Deleting the tenant removes its schemas too."""
        ...


class UsageStore(Protocol):
    """The usage counters by tenant, key and day."""

    async def add_usage(self, rows: Sequence[UsageRow], *, batch: str) -> None:
        """Add the rows' counters to the stored counters: either all counters or none.

        `batch` is a new unique name. If the store's answer got lost, the same batch may be added
        again within an hour, and is counted once.
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
        """List the usage rows from one day to another, both included, by day, tenant and key."""
        ...


class AuditLog(Protocol):
    """The log of the operators' actions."""

    async def append_audit(self, entry: AuditEntry) -> None:
        """Add an audit entry. Remove the oldest entries beyond AUDIT_KEPT."""
        ...

    async def list_audit(self, *, limit: int, skip: int = 0) -> list[AuditEntry]:
        """List at most `limit` audit entries, newest first, without the `skip` newest entries."""
        ...


class IsolationReports(Protocol):
    """The latest report on the isolation of tenants."""

    async def keep_isolation_report(self, report: IsolationReport) -> None:
        """Store a report on isolation in place of the earlier report."""
        ...

    async def isolation_report(self) -> IsolationReport | None:
        """Return the latest report on isolation, or None."""
        ...


class EngineRegistry(Protocol):
    """The stored addresses of engines, by which gateways discover engines."""

    async def register_engine(self, engine: RegisteredEngine) -> None:
        """Register an engine in place of any engine at its address, but keep the old `added_at`."""
        ...

    async def forget_engine(self, address: str) -> None:
        """Remove an engine; raise NotFound if it is not registered."""
        ...

    async def registered_engines(self) -> list[RegisteredEngine]:
        """List all registered engines, by address."""
        ...


class FlushLog(Protocol):
    """The log of flushes that engines must do: the latest flush of each tenant, deleted or not."""

    async def add_flush(self, flush: CacheFlush) -> None:
        """Record a flush in place of the tenant's earlier flush.

        A flush of everything replaces all recorded flushes.
        """
        ...

    async def flushes(self) -> list[CacheFlush]:
        """List all recorded flushes, the oldest first."""
        ...

    async def fold_flushes(self, into: CacheFlush, tenant_ids: Sequence[str]) -> None:
        """Replace the flushes of these tenants by `into`, a flush of everything.

        Other tenants' flushes stay. Does nothing if a later flush of everything is recorded.
        """
        ...


class Store(
    Records,
    ResponseStore,
    SchemaStore,
    UsageStore,
    AuditLog,
    IsolationReports,
    EngineRegistry,
    FlushLog,
    Protocol,
):
    """The whole state: all records, responses, usage, logs and registries."""

    async def close(self) -> None:
        """Close the store's files and connections."""
        ...


class Listener(Protocol):
    """A listener that is notified of other gateways' changes.

    `gateway.auth.keyring.Keyring` and `gateway.sharing.published.Published` are listeners.
    """

    def forget(self, changed_id: str) -> None:
        """Forget a remembered tenant, key, published prefix or flush, since it has changed."""
        ...

    def reload(self) -> None:
        """Reload everything, since any record may have changed."""
        ...


def since(engine: RegisteredEngine, before: bytes | None) -> RegisteredEngine:
    """Return `engine` with the `added_at` of the engine `before` at the same address, if any."""
    if before is None:
        return engine
    return replace(engine, added_at=decode(before, type=RegisteredEngine).added_at)


def live_group(record: Record) -> str | None:
    """Return the group that cannot be deleted while it has this record, or None."""
    if isinstance(record, PublishedPrefix) and record.deleted_at is not None:
        return None
    return record.group_id if isinstance(record, Tenant | PublishedPrefix) else None
