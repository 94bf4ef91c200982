"""The names of the state's keys in Redis.

Every kind of record is one hash from id to record, and every index is a separate hash or set. A
listing is therefore one command. If Redis evicted a key against its configuration, a whole kind of
record would be lost at once. Such a loss denies access, but never grants access.
"""

STATE_ID = "ratoon:state-id"
WRITABLE = "ratoon:writable"  # key that is written to learn whether Redis takes writes again
TENANTS = "ratoon:tenants"
TENANT_NAMES = "ratoon:tenant-names"
KEYS = "ratoon:keys"
DIGESTS = "ratoon:digests"  # hash from key digest to [key id, tenant id]
GROUPS = "ratoon:groups"
GROUP_NAMES = "ratoon:group-names"
PREFIXES = "ratoon:prefixes"
PREFIX_VERSIONS = "ratoon:prefix-versions"
USAGE_DAYS = "ratoon:usage-days"  # set of days with usage, sorted by day_number
RESPONSE_ENDS = "ratoon:response-ends"  # set of [tenant id, response id], sorted by expiry
RESPONSE_BYTES = "ratoon:response-bytes"  # set of tenants, sorted by the bytes of their responses
RESPONSE_BYTES_OF_ALL = "ratoon:response-bytes-of-all"
AUDIT = "ratoon:audit"  # list of audit entries, the newest first
ISOLATION_REPORT = "ratoon:isolation-report"
ENGINES = "ratoon:engines"  # hash from address to engine record
FLUSHES = "ratoon:flushes"  # hash from tenant id ("" for all tenants) to flush record
# channel of changes; its messages are ids of tenants, prefixes or flushes
CHANGES = "ratoon:changes"


def keys_of(tenant_id: str) -> str:
    """Return the Redis key of the set of a tenant's key ids."""
    return f"ratoon:tenant-keys:{tenant_id}"


def members_of(group_id: str) -> str:
    """Return the Redis key of a set: the ids of a group's tenants and live prefixes."""
    return f"ratoon:group-members:{group_id}"


def responses_of(tenant_id: str) -> str:
    """Return the Redis key of a tenant's stored responses, from id to record."""
    return f"ratoon:responses:{tenant_id}"


def schemas_of(tenant_id: str) -> str:
    """Return the Redis key of a tenant's module schemas, from id to record."""
    return f"ratoon:module-schemas:{tenant_id}"


def response_ages(tenant_id: str) -> str:
    """Return the Redis key of a tenant's response ids, sorted by creation."""
    return f"ratoon:response-ages:{tenant_id}"


def version_of(name: str, version: int) -> str:
    """Return a prefix's field in PREFIX_VERSIONS.

    The version is first, so that no field is ambiguous.
    """
    return f"{version}:{name}"


def usage_tenants(day: str) -> str:
    """Return the Redis key of the set of tenants with usage on a day."""
    return f"ratoon:usage-tenants:{day}"


def usage_of(day: str, tenant_id: str) -> str:
    """Return the Redis key of a tenant's counters of a day: `KEY ID:COUNTER` to number."""
    return f"ratoon:usage:{day}:{tenant_id}"


def batch_of(name: str) -> str:
    """Return the Redis key that marks a batch of usage as counted."""
    return f"ratoon:usage-batch:{name}"


def day_number(day: str) -> str:
    """Convert a day to a number that sorts like the day."""
    return day.replace("-", "")
