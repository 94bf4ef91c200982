"""The typed errors of all stores, for missing records, taken values and exceeded limits."""

from gateway.errors import Conflict, NotFound
from gateway.state.records import ApiKey, Group, PublishedPrefix, Tenant
from gateway.state.store import MOST_SCHEMAS, Record

_NAMES: dict[type[Record], str] = {
    Tenant: "tenant",
    ApiKey: "key",
    Group: "group",
    PublishedPrefix: "prefix",
}


def missing(kind: type[Record]) -> NotFound:
    """Make the error for a missing record of this kind."""
    return NotFound(f"no such {_NAMES[kind]}")


def missing_engine() -> NotFound:
    """Make the error for an address without a registered engine."""
    return NotFound("no such engine")


def missing_response() -> NotFound:
    """Make the error for a stored response that is missing, or another tenant's."""
    return NotFound("there is no such response", code="response_not_found", param="response_id")


def missing_schema() -> NotFound:
    """Make the error for a module schema that is missing, or another tenant's."""
    return NotFound("there is no such schema of modules", code="schema_not_found")


def too_many_schemas() -> Conflict:
    """Make the error for a tenant that has too many module schemas."""
    return Conflict(f"the tenant has {MOST_SCHEMAS} schemas of modules: delete one first")


def taken() -> Conflict:
    """Make the error for a unique value that is taken."""
    return Conflict("the name or id is taken")


def has_members() -> Conflict:
    """Make the error for a group that cannot be deleted because it has members."""
    return Conflict("the group still has tenants or published prefixes")
