"""`ratoon usage`: the usage of tenants, by key and day."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from cli.operating.admin_client import TENANTS, AdminClient, with_admin
from cli.options.options import AdminFlags
from cli.output import print_result, print_table

# Some columns are stacked, so that the table fits 80 columns.
_USAGE_COLUMNS = (
    "day",
    "tenant\nkey",
    "requests\nsaved s",
    "computed\ncached",
    "generated",
    "written\nunread",
)
_COUNTED = (
    "requests",
    "computed_tokens",
    "cached_tokens",
    "generated_tokens",
    "saved_ms",
    "cache_written_tokens",
    "cache_unread_tokens",
)
_DAY = itemgetter("day")
_UNITS = ("", "k", "M", "G", "T")


def _day(which: str) -> Any:
    return typer.Option(metavar="DAY", help=f"{which} day, such as 2026-01-31.", show_default=False)


def usage(
    admin: AdminFlags,
    tenant: Annotated[
        str | None,
        typer.Option(help="Show only this tenant's usage, by name or id.", show_default=False),
    ] = None,
    first: Annotated[str | None, _day("First")] = None,
    last: Annotated[str | None, _day("Last")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show deleted tenants one by one, not together by day.")
    ] = False,
) -> None:
    """Show tenants' usage by key and day (UTC), and in total; by default of the last 31 days.

    The columns count tokens: computed, cached (with the seconds that this saved), generated,
    written into the cache, and unread: written, but found by no request so far. --json has exact
    numbers.

    Example:

        ratoon usage --tenant acme --first 2026-01-01 --last 2026-01-31
    """

    async def use(client: AdminClient) -> tuple[list[dict[str, Any]], dict[str, str]]:
        wanted = {"from": first, "to": last}
        if tenant is not None:
            wanted["tenant"] = await TENANTS.find(client, tenant, "--tenant")
        given = {name: value for name, value in wanted.items() if value is not None}
        rows = await client.rows(f"/admin/usage?{urlencode(given)}", "usage")
        return rows, await TENANTS.names(client)

    rows, names = with_admin(admin, use)
    print_result(rows, lambda rows: show_usage(rows, names, every=every), as_json=admin.json)


def show_usage(
    rows: Sequence[dict[str, Any]], names: Mapping[str, str], *, every: bool = True
) -> None:
    """Print the rows of GET /admin/usage as a table of 80 columns, with large numbers shortened.

    `names` maps ids to names of tenants that exist. Other tenants were deleted, and share one row
    for each day unless `every`.
    """
    cells = [cell for _, day in groupby(rows, _DAY) for cell in _cells(list(day), names, every)]
    if rows:
        cells.append(_usage("all days", "all keys", totals(rows)))
    print_table("Usage in tokens, large numbers rounded", _USAGE_COLUMNS, cells)


def _cells(
    rows: Sequence[dict[str, Any]], names: Mapping[str, str], every: bool
) -> Iterator[tuple[str, ...]]:
    """Yield a day's rows. Several deleted tenants share a row at the end."""
    gone = [row for row in rows if row["tenant_id"] not in names]
    number = len({row["tenant_id"] for row in gone})
    for row in rows:
        if every or number < 2 or row["tenant_id"] in names:
            yield _usage(row["day"], f"{_named(row, names)}\n{row['key_id']}", row)
    if number >= 2 and not every:
        whose = f"{number} deleted tenants\n{len(gone)} keys"
        yield _usage(gone[0]["day"], whose, totals(gone))


def totals(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sum the rows, count by count. A count that no row has is None."""
    return {
        name: sum(counts)
        if (counts := [c for row in rows if (c := row[name]) is not None])
        else None
        for name in _COUNTED
    }


def _named(row: dict[str, Any], names: Mapping[str, str]) -> str:
    return names.get(row["tenant_id"]) or f"{row['tenant_id']} (deleted)"


def _usage(day: str, whose: str, counts: dict[str, Any]) -> tuple[str, ...]:
    saved_ms = counts["saved_ms"]
    # The cell is empty if no row has the count.
    saved_s = "" if saved_ms is None else _short(round(saved_ms / 1000, 3))
    return (
        day,
        whose,
        f"{_short(counts['requests'])}\n{saved_s}",
        f"{_short(counts['computed_tokens'])}\n{_short(counts['cached_tokens'])}",
        _short(counts["generated_tokens"]),
        f"{_short(counts['cache_written_tokens'])}\n{_short(counts['cache_unread_tokens'])}",
    )


def _short(number: float) -> str:
    if isinstance(number, int) and number < 10_000:
        return str(number)
    for unit in _UNITS:
        digits = f"{number:.3g}"
        if float(digits) < 1000 or unit == _UNITS[-1]:
            break
        number /= 1000
    return digits + unit
