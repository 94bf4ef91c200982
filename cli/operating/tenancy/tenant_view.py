"""`ratoon tenants show`: a tenant's record, keys, cache and usage in one view."""

import time
from typing import Any

from cli.echo import echo
from cli.operating.admin_client import GROUPS, TENANTS, AdminClient, with_admin
from cli.operating.cache import stats_of
from cli.operating.tenancy.tenant_keys import KEY_COLUMNS, key_row
from cli.operating.tenancy.tenant_limits import TenantArgument, described, quota_of
from cli.operating.tenancy.tenants import state_of
from cli.operating.usage import show_usage
from cli.options.options import AdminFlags
from cli.output import moment, print_result, print_table


def show(admin: AdminFlags, tenant: TenantArgument) -> None:
    """Show a tenant: its limits, quota, keys, cache, and its usage of the last 31 days.

    Example:

        ratoon tenants show acme
    """

    async def use(client: AdminClient) -> dict[str, Any]:
        tenant_id = await TENANTS.find(client, tenant)
        path = TENANTS.path_of(tenant_id)
        record = await client.call("GET", path)
        groups = await GROUPS.names(client) if record.get("group_id") else {}
        stats = await stats_of(client)
        flows = [] if stats is None else [one for one in stats["tenants"] if one["id"] == tenant_id]
        return {
            "tenant": record,
            "group": groups.get(record.get("group_id")),
            "keys": await client.rows(f"{path}/keys", "keys"),
            "usage": await client.rows(f"/admin/usage?tenant={tenant_id}", "usage"),
            # None if the engine does not answer, or before the tenant's first request
            "cache": flows[0] if flows else None,
        }

    print_result(with_admin(admin, use), _show, as_json=admin.json)


def _show(found: dict[str, Any]) -> None:
    record = found["tenant"]
    rows = [
        ("name", record["name"]),
        ("id", record["id"]),
        ("state", state_of(record)),
        ("group", found["group"] or "-"),
        ("priority", record.get("priority", "interactive")),
        ("target between tokens", _target_of(record)),
        ("cache", quota_of(record)),
        ("usage says tiers", "yes" if record.get("usage_tiers") else "no"),
        ("canonical prompts", "yes" if record.get("canonical_prompts") else "no"),
        ("created", moment(record.get("created_at"))),
    ]
    limits = [("limits", line.strip()) for line in described(record.get("limits", {}))]
    print_table("Tenant", ("", ""), [*rows, *limits])
    keys = [key_row(key, time.time()) for key in found["keys"]]
    echo()
    print_table("Keys", KEY_COLUMNS, keys)
    echo()
    if found["cache"] is not None:
        _show_cache(found["cache"])
        echo()
    show_usage(found["usage"], {record["id"]: record["name"]})


def _target_of(record: dict[str, Any]) -> str:
    target = record.get("target_itl_ms", 0.0)
    return f"{target:g} ms" if target else "the server's"


def _show_cache(cache: dict[str, Any]) -> None:
    rate = cache["hit_rate"]
    said = "no prompt yet" if rate is None else f"{rate:.1%} of its prompt tokens were found"
    shares = [
        (tier, share["held"], share["floor"], share["ceiling"], f"{share['fair']:.0f}")
        for tier, share in cache["tiers"].items()
    ]
    print_table(f"Cache: {said}", ("tier", "held", "floor", "ceiling", "fair share"), shares)
