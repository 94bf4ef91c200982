"""`ratoon status`: server, engine and tiers of the cache in one screen."""

from __future__ import annotations

from typing import Any

import typer

from cli.operating.admin_client import AdminClient, admin_target, with_admin
from cli.operating.engine_stats import stats_of
from cli.options.options import AdminFlags
from cli.output import print_result, print_table
from cli.watching.fill import TIER_COLUMNS, tier_rows

_SERVES = ("ready", "disk_full")  # with a full disk requests are served


def status(admin: AdminFlags) -> None:
    """Show whether the server, its engine and each tier of the cache work.

    Exits with 1 if requests are not served.

    Example:

        ratoon status
    """

    async def use(client: AdminClient) -> dict[str, Any]:
        return {"health": await client.health(), "cache": await stats_of(client)}

    url, _ = admin_target(admin)
    found = {"url": url, **with_admin(admin, use)}
    print_result(found, _show, as_json=admin.json)
    if found["health"]["status"] not in _SERVES:
        raise typer.Exit(1)


def _show(found: dict[str, Any]) -> None:
    health, cache = found["health"], found["cache"]
    rows = [("server", health["status"], health.get("reason") or found["url"])]
    rows.append(("engine", "no answer", "") if cache is None else _engine_row(cache))
    if cache is not None and (disk := cache["tiers"]["disk"]) is not None:
        rows.append(("disk", disk["state"], f"{disk['records']} blocks, {disk['lost']} lost"))
    print_table("Processes", ("process", "state", "detail"), rows)
    if cache is not None:
        typer.echo()
        print_table("Cache (blocks)", TIER_COLUMNS, tier_rows(cache))


def _engine_row(cache: dict[str, Any]) -> tuple[str, str, str]:
    queue = cache["queue"]
    said = (
        f"{queue['running']} running, {queue['waiting']} waiting, up for {cache['uptime_s']:.0f} s"
    )
    return "engine", "answers", said
