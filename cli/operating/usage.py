"""`ratoon usage` and `ratoon audit`: what tenants used, and what operators changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
import typer

from cli.operating.admin_client import TENANTS, AdminClient, with_admin
from cli.options.options import AdminFlags
from cli.output import moment, print_result, print_rows, print_table

# The ids and the two counts of the cache are one above the other: so all fits 100 columns.
_USAGE_COLUMNS = (
    "day",
    "tenant\nkey",
    "requests",
    "computed",
    "cached",
    "generated",
    "saved s",
    "written\nunread",
)
_UNITS = ("", "k", "M", "G", "T")
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

    Tokens are computed, cached (and the seconds saved so), generated, written into the cache, and
    of those unread: no request has found them to this day. --json has exact numbers.

    Example:

        ratoon usage --tenant acme --first 2026-01-01 --last 2026-01-31
    """

    async def use(client: AdminClient) -> list[dict[str, Any]]:
        wanted = {"from": first, "to": last}
        if tenant is not None:
            wanted["tenant"] = await TENANTS.find(client, tenant)
        given = {name: value for name, value in wanted.items() if value is not None}
        return await client.rows(f"/admin/usage?{urlencode(given)}", "usage")

    rows = with_admin(admin, use)
    print_result(rows, show_usage, as_json=admin.json)


def show_usage(rows: Iterable[dict[str, Any]]) -> None:
    """The rows of GET /admin/usage as a table of 100 columns, with large numbers in short."""
    print_table("Usage in tokens, large numbers rounded", _USAGE_COLUMNS, map(_usage, rows))


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
    columns = ("time", "actor", "action", "target", "detail")
    print_rows("Audit log", columns, entries, _entry, as_json=admin.json)


def _usage(row: dict[str, Any]) -> tuple[str, ...]:
    saved_ms = row["saved_ms"]
    return (
        row["day"],
        f"{row['tenant_id']}\n{row['key_id']}",
        _short(row["requests"]),
        _short(row["computed_tokens"]),
        _short(row["cached_tokens"]),
        _short(row["generated_tokens"]),
        # Nothing where it was not measured.
        "" if saved_ms is None else _short(round(saved_ms / 1000, 3)),
        f"{_short(row['cache_written_tokens'])}\n{_short(row['cache_unread_tokens'])}",
    )


def _short(number: float) -> str:
    """In five characters or so: whole numbers in full up to 9999, others to three digits."""
    if isinstance(number, int) and number < 10_000:
        return str(number)
    for unit in _UNITS:
        digits = f"{number:.3g}"
        if float(digits) < 1000 or unit == _UNITS[-1]:
            break
        number /= 1000
    return digits + unit


def _plain(value: Any) -> str:
    """A string as it is, everything else as in JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _entry(entry: dict[str, Any]) -> tuple[str, ...]:
    detail = ", ".join(f"{name}={_plain(value)}" for name, value in entry["detail"].items())
    return moment(entry["time"]), entry["actor"], entry["action"], entry["target"], detail
