"""`ratoon cache`: statistics and flushes of a running server's prefix cache.

Tables are for people, and JSON is for programs.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Annotated, Any

import typer

from cli.echo import echo
from cli.errors import ServerRefused
from cli.operating.admin_client import TENANTS, AdminClient, with_admin
from cli.operating.deleted import folded, name_of
from cli.options.options import AdminFlags
from cli.output import moment, print_answer, print_result, print_table

STATS = "/admin/cache/stats"
EVICTIONS = "/admin/cache/evictions"
FLUSH = "/admin/cache/flush"
_GIB = 1 << 30
_NO_ENGINE = 503
_EXTENT = ("total", "free", "used", "evictable", "leased")
_TENANT = ("requests", "prompt_tokens", "blocks_held", "evictions_caused", "evictions_suffered")
Cells = tuple[object, ...]


async def stats_of(client: AdminClient) -> dict[str, Any] | None:
    """Call GET /admin/cache/stats. Returns None if no engine answers.

    Raises the other errors of `AdminClient.call`.
    """
    try:
        stats: dict[str, Any] = await client.call("GET", STATS)
    except ServerRefused as refused:
        if refused.status != _NO_ENGINE:
            raise
        return None
    return stats


def stats(
    admin: AdminFlags,
    every: Annotated[
        bool, typer.Option("--all", help="Show deleted tenants one by one, not together.")
    ] = False,
) -> None:
    """Show the cache's content and hit rates.

    The hit rate is the share of prompt tokens that were found in the cache. It is given for the
    last minute, the last ten minutes, and the time since the engine's start.

    Example:

        ratoon cache stats --json | jq '.windows.all.hit_rate'
    """
    answer = with_admin(admin, lambda client: client.call("GET", STATS))
    print_result(answer, lambda found: show(found, every=every), as_json=admin.json)


def evictions(admin: AdminFlags) -> None:
    """List the last evictions between tenants: whose blocks were evicted, for whom, and why.

    Example:

        ratoon cache evictions --json | jq '.[0]'
    """
    rows = with_admin(admin, lambda client: client.rows(EVICTIONS, "evictions"))
    print_result(rows, show_evictions, as_json=admin.json)


def flush(
    admin: AdminFlags,
    tenant: Annotated[
        str | None, typer.Option(help="Drop only this tenant's prefixes, by name or id.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Drop cached prefixes, and compiled grammars, of one tenant or of all.

    Blocks in use by running requests are dropped when these end.

    Example:

        ratoon cache flush --tenant acme
    """

    if tenant is None and not yes:
        typer.confirm("Drop what is cached of every tenant?", abort=True, err=True)

    async def use(client: AdminClient) -> Any:
        body = {} if tenant is None else {"tenant": await TENANTS.find(client, tenant, "--tenant")}
        return await client.call("POST", FLUSH, body)

    answer = with_admin(admin, use)
    print_answer(answer, dropped(answer), as_json=admin.json)


def dropped(answer: dict[str, Any]) -> str:
    """Describe the answer of POST /admin/cache/flush in a sentence."""
    said = f"Dropped {answer['flushed_blocks'] or 0} blocks."
    if answer["awaited"]:
        names = ", ".join(answer["awaited"])
        said += (
            f" Engines that are away drop theirs when they are back, before they serve: {names}."
        )
    return said


def show(stats: dict[str, Any], *, every: bool = False) -> None:
    """Print all tables. Deleted tenants share a row unless `every`."""
    tenants = stats["tenants"] if every else folded(stats["tenants"])
    _show_windows(stats["windows"])
    print_table(
        f"Pool (blocks of {stats['pool']['block_size']} tokens)",
        ("", *_EXTENT),
        [(unit, *itemgetter(*_EXTENT)(stats["pool"][unit])) for unit in ("blocks", "tokens")],
    )
    heads = ("requests", "prompt tokens", "hit rate", "blocks", "evictions caused", "suffered")
    print_table("Tenants", ("tenant", *heads), map(_tenant_row, tenants))
    _show_shares(tenants, stats["floors_scale"])
    _show_tiers(stats["tiers"])
    if stats["replicas"]:
        columns = ("engine", "state", "running", "waiting", "used", "total", "hit rate")
        print_table("Engines (blocks)", columns, map(_replica_row, stats["replicas"]))
    print_table("Engine", ("", ""), _engine_rows(stats))


def show_evictions(evictions: list[dict[str, Any]]) -> None:
    """Print the answer of GET /admin/cache/evictions."""
    names = ("blocks", "of_tenant", "for_tenant", "tier", "reason")
    print_table(
        "Evictions between tenants",
        ("time", "blocks", "of", "for", "tier", "reason"),
        [(moment(one["time"]), *itemgetter(*names)(one)) for one in evictions],
    )


def _show_windows(windows: dict[str, dict[str, Any]]) -> None:
    heads, names = ["looked up", "from the cache"], ["queried_tokens", "hit_tokens"]
    if any(window["fetched_tokens"] for window in windows.values()):
        heads.append("fetched")
        names.append("fetched_tokens")
    rows = [
        (name, *itemgetter(*names, "computed_tokens")(window), percent(window["hit_rate"]))
        for name, window in windows.items()
    ]
    print_table("Prompt tokens", ("window", *heads, "computed", "hit rate"), rows)


def _show_shares(tenants: Sequence[dict[str, Any]], floors_scale: Mapping[str, float]) -> None:
    rows = [
        _share_row(tenant, tier, share)
        for tenant in tenants
        for tier, share in tenant["tiers"].items()
    ]
    if rows:
        columns = ("tenant", "tier", "held", "floor", "ceiling", "fair share", "caused", "suffered")
        print_table("Shares (blocks)", columns, rows)
    for tier, scale in floors_scale.items():
        if scale < 1.0:
            echo(
                f"The floors of {tier} exceed the tier: each counts as {scale:.0%} of what was set."
            )


def _share_row(tenant: dict[str, Any], tier: str, share: dict[str, Any]) -> Cells:
    return (
        name_of(tenant),
        tier,
        *itemgetter("held", "floor", "ceiling")(share),
        f"{share['fair']:.0f}",
        _reasons(tenant["caused"].get(tier, {})),
        _reasons(tenant["suffered"].get(tier, {})),
    )


def _reasons(blocks: dict[str, int]) -> str:
    ordered = sorted(blocks.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{count} {reason}" for reason, count in ordered) or "0"


def _show_tiers(tiers: dict[str, Any]) -> None:
    if not tiers["lower"]:
        return
    print_table(
        "Lower tiers (blocks)",
        ("", "total", "used", "GiB used", "hit tokens", "loads chosen", "refused", "evicted"),
        [_tier_row(name, tier, tiers) for name, tier in tiers["lower"].items()],
    )
    print_table(
        "Moves",
        ("from", "to", "blocks", "GiB", "seconds", "GB/s", "failed"),
        map(_moves_row, tiers["moves"]),
    )
    if tiers["disk"] is not None:
        print_table("Disk", ("", ""), tiers["disk"].items())


def percent(rate: float | None) -> str:
    """Write a share as a percentage, or None as a dash."""
    return "-" if rate is None else f"{rate:.1%}"


def _tenant_row(tenant: dict[str, Any]) -> Cells:
    requests, tokens, *blocks = itemgetter(*_TENANT)(tenant)
    return (name_of(tenant), requests, tokens, percent(tenant["hit_rate"]), *blocks)


def _tier_row(name: str, tier: dict[str, Any], tiers: dict[str, Any]) -> Cells:
    return (
        name,
        *itemgetter("total_blocks", "used_blocks")(tier),
        f"{tier['used_bytes'] / _GIB:.2f}",
        tiers["hit_tokens"][name],
        *itemgetter("loads_chosen", "loads_refused")(tier),
        sum(tiers["evictions"].get(name, {}).values()),
    )


def _moves_row(moves: dict[str, Any]) -> Cells:
    rate = moves["gb_per_s"]
    return (
        *itemgetter("source", "target", "blocks")(moves),
        f"{moves['bytes'] / _GIB:.2f}",
        f"{moves['seconds']:.2f}",
        "-" if rate is None else f"{rate:.2f}",
        moves["failed"],
    )


def _replica_row(replica: dict[str, Any]) -> Cells:
    counted = replica["counted"]
    if counted is None:
        return (replica["name"], replica["reason"] or "no answer", *"-----")
    queue, blocks = counted["queue"], counted["pool"]["blocks"]
    rate = counted["windows"].get("all", {}).get("hit_rate")
    in_queue = (queue["running"], queue["waiting"])
    return (
        replica["name"],
        replica["state"],
        *in_queue,
        *itemgetter("used", "total")(blocks),
        percent(rate),
    )


def _engine_rows(stats: dict[str, Any]) -> list[Cells]:
    queue, tree = stats["queue"], stats["tree"]
    return [
        ("running, waiting", f"{queue['running']}, {queue['waiting']}"),
        ("tree", f"{tree['nodes']} nodes, {tree['depth']} deep"),
        ("generated tokens", stats["generated_tokens"]),
        ("steps", stats["steps"]),
        ("preemptions", stats["preemptions"]),
        ("up for", f"{stats['uptime_s']:.0f} s"),
        ("fingerprint", stats["fingerprint"]),
    ]
