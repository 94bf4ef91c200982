"""`ratoon status`: the state of server, engine and cache tiers on one screen."""

from typing import Any, TypeAlias

import typer

from cli.echo import echo
from cli.operating.admin_client import AdminClient, with_admin
from cli.operating.cache import stats_of
from cli.operating.server_target import admin_target
from cli.options.options import AdminFlags
from cli.output import print_result, print_table
from cli.watching.rates import TIER_COLUMNS, num_ranks, ranks_of, tier_rows

Row: TypeAlias = tuple[str, str, str]
_SERVES = ("ready", "state_evicts", "disk_full")
_ROUTER_IS_AWAY = "each worker chooses an engine by its own requests"


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
    rows += _replica_rows(health, cache) if "replicas" in health else _rows_of("", cache)
    if "router" in health:
        is_away = health["router"] != "answers"
        rows.append(("router", health["router"], _ROUTER_IS_AWAY if is_away else ""))
    print_table("Processes", ("process", "state", "detail"), rows)
    if cache is not None:
        echo()
        print_table("Cache (blocks)", TIER_COLUMNS, tier_rows(cache))


def _replica_rows(health: dict[str, Any], cache: dict[str, Any] | None) -> list[Row]:
    counted = {one["name"]: one["counted"] for one in cache["replicas"]} if cache else {}
    rows: list[Row] = []
    for name, replica in health["replicas"].items():
        (_, said, detail), *disk = _rows_of(f" {name}", counted.get(name))
        is_ready = replica["state"] == "ready"
        if "role" in replica:
            detail = f"{replica['role']}: {detail}"
        shown = (said, detail) if is_ready else (replica["state"], replica.get("reason", ""))
        rows += [(f"engine {name}", *shown), *disk]
    return rows


def _rows_of(name: str, counted: dict[str, Any] | None) -> list[Row]:
    if counted is None:
        return [(f"engine{name}", "no answer", "")]
    queue, disk = counted["queue"], counted["tiers"]["disk"]
    under_way = f"{queue['running']} running, {queue['waiting']} waiting"
    if num_ranks(counted) > 1:
        under_way = f"{ranks_of(counted)} ranks run: {under_way}"
    rows = [(f"engine{name}", "answers", f"{under_way}, up for {counted['uptime_s']:.0f} s")]
    sentinel = counted["sentinel"]
    if sentinel["differed"] or sentinel["damaged_blocks"]:
        detail = f"{sentinel['differed']} of {sentinel['checked']} answers computed again differ"
        detail += f", {sentinel['damaged_blocks']} blocks damaged"
        rows.append((f"cache{name}", "wrong", detail))
    gaps = counted["gaps"]
    # more than a hundredth of the gaps are late
    if gaps["recent_late"] * 100 > gaps["recent_gaps"]:
        detail = f"{gaps['recent_late']} of the last minute's {gaps['recent_gaps']} gaps between"
        rows.append((f"gaps{name}", "too long", f"{detail} tokens exceed their targets"))
    if disk is not None:
        detail = f"{disk['records']} blocks, {disk['lost']} lost"
        rows.append((f"disk{name}", disk["state"], detail))
    return rows
