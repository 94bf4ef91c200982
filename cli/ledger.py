"""`ratoon usage` and `ratoon audit`: what tenants used, and what operators changed.

Knows: the admin routes of both and what is shown of them. Does not know: how requests are made
(`admin_client`).
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from cli.admin_client import AdminClient, with_admin
from cli.client_options import AdminFlags
from cli.output import moment, print_json, print_table
from cli.tenants import find_tenant

_COUNTERS = ("requests", "computed_tokens", "cached_tokens", "generated_tokens", "saved_ms")
Day = Annotated[
    str | None, typer.Option(metavar="DAY", help="Such as 2026-01-31.", show_default=False)
]


def usage(
    admin: AdminFlags,
    tenant: Annotated[
        str | None, typer.Option(help="Only this tenant's, by name or id.", show_default=False)
    ] = None,
    first: Day = None,
    last: Day = None,
) -> None:
    """Show what tenants used, by key and day (UTC); by default of the last 31 days.

    Example:

        ratoon usage --tenant acme --first 2026-01-01 --last 2026-01-31
    """

    async def use(client: AdminClient) -> list[dict[str, Any]]:
        wanted = {"from": first, "to": last}
        if tenant is not None:
            wanted["tenant"] = await find_tenant(client, tenant)
        given = {name: value for name, value in wanted.items() if value is not None}
        return await client.rows(f"/admin/usage?{urlencode(given)}", "usage")

    rows = with_admin(admin, use)
    if admin.json:
        print_json(rows)
        return
    columns = ("day", "tenant_id", "key_id", *_COUNTERS)
    cells = (tuple(_cell(row[name]) for name in columns) for row in rows)
    print_table("Usage", [name.replace("_", " ") for name in columns], cells)


def audit(
    admin: AdminFlags,
    limit: Annotated[int, typer.Option(help="Entries to show.", min=1, max=1000)] = 50,
) -> None:
    """Show what was changed over the admin routes, newest first.

    Example:

        ratoon audit --limit 10
    """
    entries = with_admin(
        admin, lambda client: client.rows(f"/admin/audit?limit={limit}", "entries")
    )
    if admin.json:
        print_json(entries)
        return
    print_table("Audit log", ("time", "actor", "action", "target", "detail"), map(_entry, entries))


def _cell(value: str | float | None) -> str:
    """Nothing for what was not measured."""
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:.10g}"


def _entry(entry: dict[str, Any]) -> tuple[str, ...]:
    detail = ", ".join(f"{name}={value}" for name, value in entry["detail"].items())
    return moment(entry["time"]), entry["actor"], entry["action"], entry["target"], detail
