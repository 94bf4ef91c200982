"""`ratoon audit`: the operators' changes."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any

import msgspec
import typer

from cli.operating.admin_client import AdminClient, with_admin
from cli.options.options import AdminFlags
from cli.output import moment, print_result, print_table

# All names that `ratoon verify-isolation` makes begin with this prefix.
MARK = "verify-isolation"
_PAGE = 1000
_COLUMNS = ("time", "actor", "action", "target", "detail")
Entry = dict[str, Any]
Cells = tuple[str, ...]


def audit(
    admin: AdminFlags,
    limit: Annotated[int, typer.Option(help="Rows to show.", min=1, max=_PAGE)] = 50,
    every: Annotated[
        bool, typer.Option("--all", help="Also show each change that verify-isolation made.")
    ] = False,
) -> None:
    """Show the changes made over the admin routes, newest first.

    Each run of 'ratoon verify-isolation', with some hundred changes, is one row unless --all or
    --json is given.

    Example:

        ratoon audit --limit 10
    """
    single = every or admin.json

    async def use(client: AdminClient) -> list[Entry]:
        return await (_page(client, limit) if single else enough(client, limit))

    entries = with_admin(admin, use)
    rows = map(_row, entries) if single else rows_of(entries)[:limit]
    print_result(entries, lambda _: print_table("Audit log", _COLUMNS, rows), as_json=admin.json)


async def _page(client: AdminClient, limit: int, skip: int = 0) -> list[Entry]:
    return await client.rows(f"/admin/audit?limit={limit}&skip={skip}", "entries")


async def enough(client: AdminClient, rows: int) -> list[Entry]:
    """Fetch the newest entries until they make more than `rows` rows, or all entries."""
    entries = list[Entry]()
    while len(rows_of(entries)) <= rows:
        entries += (page := await _page(client, _PAGE, len(entries)))
        if len(page) < _PAGE:
            break
    return entries


def rows_of(entries: Sequence[Entry]) -> list[Cells]:
    """Write a row for each entry. Consecutive verify-isolation entries share a row."""
    tested = _tested(entries)
    by_test = groupby(entries, lambda entry: _ids(entry) & tested != set())
    return [row for is_test, some in by_test for row in _rows(list(some), is_test)]


def _rows(entries: Sequence[Entry], is_test: bool) -> Iterator[Cells]:
    if not is_test or len(entries) == 1:
        yield from map(_row, entries)
        return
    newest, oldest = entries[0], entries[-1]
    detail = f"since {moment(oldest['time'])}; each with --all"
    yield moment(newest["time"]), newest["actor"], f"{len(entries)} changes", MARK, detail


def _tested(entries: Sequence[Entry]) -> set[str]:
    """Collect the ids of resources that verify-isolation created.

    The name of such a resource begins with MARK, or is the id of an earlier such resource.
    """
    found = set[str]()
    for entry in reversed(entries):
        name = entry["detail"].get("name")
        if isinstance(name, str) and (name.startswith(MARK) or name in found):
            found.add(entry["target"])
    return found


def _ids(entry: Entry) -> set[str]:
    about = (entry["target"], entry["detail"].get("tenant"))
    return {one for one in about if isinstance(one, str)}


def _row(entry: Entry) -> Cells:
    detail = ", ".join(f"{name}={_plain(value)}" for name, value in entry["detail"].items())
    return moment(entry["time"]), entry["actor"], entry["action"], entry["target"], detail


def _plain(value: Any) -> str:
    if isinstance(value, dict) and isinstance(value.get("id"), str):
        value = value["id"]
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
