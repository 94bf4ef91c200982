"""`ratoon cache`: what the prefix cache of a running server holds and does.

Knows: the admin routes of the cache and what is shown of them. Does not know: the cache.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.admin_client import AdminClient, with_admin
from cli.client_options import AdminFlags
from cli.output import print_json, print_table
from cli.tenants import find_tenant

STATS = "/admin/cache/stats"
FLUSH = "/admin/cache/flush"


def stats(admin: AdminFlags) -> None:
    """Show what the cache holds and how much of what was asked it had.

    Hit rate: prompt tokens found in the cache, of all looked up, over one minute, ten, and all.

    Example:

        ratoon cache stats --json | jq '.windows.all.hit_rate'
    """
    answer = with_admin(admin, lambda client: client.call("GET", STATS))
    if admin.json:
        print_json(answer)
        return
    for name, section in sections(answer).items():
        show_section(name, section)


def flush(
    admin: AdminFlags,
    tenant: Annotated[str | None, typer.Option(help="Of this tenant alone, by name or id.")] = None,
) -> None:
    """Forget cached prefixes: of one tenant, or of all.

    What running requests hold is forgotten when they end.

    Example:

        ratoon cache flush --tenant acme
    """

    async def use(client: AdminClient) -> Any:
        body = {} if tenant is None else {"tenant": await find_tenant(client, tenant)}
        return await client.call("POST", FLUSH, body)

    answer = with_admin(admin, use)
    if admin.json:
        print_json(answer)
    else:
        typer.echo(f"Forgot {answer['flushed_blocks']} blocks.")


def sections(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer's tables by name, its single values together under "cache"."""
    single = {name: value for name, value in answer.items() if not isinstance(value, dict | list)}
    return {"cache": single} | {name: answer[name] for name in answer if name not in single}


def show_section(name: str, section: Any) -> None:
    """One table: a row for each record, or for each value where there are no records."""
    records = section if isinstance(section, list) else _as_records(section)
    if not records:
        return
    columns = list(dict.fromkeys(column for record in records for column in record))
    rows = ([plain(record.get(column, "")) for column in columns] for record in records)
    print_table(name, columns, rows)


def _as_records(section: dict[str, Any]) -> list[dict[str, Any]]:
    if section and all(isinstance(value, dict) for value in section.values()):
        return [{"": name} | record for name, record in section.items()]
    return [{"": name, "value": value} for name, value in section.items()]


def plain(value: Any) -> str:
    """A number or text as a person reads it; a dash for what is not known."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)
