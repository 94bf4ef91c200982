"""The numbers of the cache as tables for people; machines read the JSON.

Knows: the answer of GET /admin/cache/stats. Does not know: HTTP.
"""

from __future__ import annotations

from typing import Any

import typer

from cli.output import moment, print_table

_GIB = 1 << 30
_EXTENT = ("total", "free", "used", "evictable", "leased")


def show(stats: dict[str, Any]) -> None:
    """All tables on standard output."""
    print_table(
        "Prompt tokens",
        ("window", "looked up", "from the cache", "computed", "hit rate"),
        [_window_row(name, window) for name, window in stats["windows"].items()],
    )
    print_table(
        f"Pool (blocks of {stats['pool']['block_size']} tokens)",
        ("", *_EXTENT),
        [_extent_row(unit, stats["pool"][unit]) for unit in ("blocks", "tokens")],
    )
    print_table(
        "Tenants",
        (
            "tenant",
            "requests",
            "prompt tokens",
            "hit rate",
            "blocks",
            "evictions caused",
            "suffered",
        ),
        [_tenant_row(tenant) for tenant in stats["tenants"]],
    )
    _show_shares(stats)
    _show_tiers(stats["tiers"])
    print_table("Engine", ("", ""), _engine_rows(stats))


def show_evictions(evictions: list[dict[str, Any]]) -> None:
    """The answer of GET /admin/cache/evictions."""
    print_table(
        "Evictions between tenants",
        ("time", "blocks", "of", "for", "tier", "reason"),
        [
            (
                moment(one["time"]),
                str(one["blocks"]),
                one["of_tenant"],
                one["for_tenant"],
                one["tier"],
                one["reason"],
            )
            for one in evictions
        ],
    )


def _show_shares(stats: dict[str, Any]) -> None:
    """Each tenant's share of each tier."""
    rows = [
        _share_row(tenant, tier, share)
        for tenant in stats["tenants"]
        for tier, share in tenant["tiers"].items()
    ]
    if rows:
        columns = ("tenant", "tier", "held", "floor", "ceiling", "fair share", "caused", "suffered")
        print_table("Shares (blocks)", columns, rows)
    for tier, scale in stats["floors_scale"].items():
        if scale < 1.0:
            typer.echo(
                f"The floors of {tier} exceed the tier: each counts as {scale:.0%} of what was set."
            )


def _share_row(tenant: dict[str, Any], tier: str, share: dict[str, Any]) -> tuple[str, ...]:
    return (
        tenant["name"] or f"{tenant['id']} (deleted)",
        tier,
        str(share["held"]),
        str(share["floor"]),
        str(share["ceiling"]),
        f"{share['fair']:.0f}",
        _reasons(tenant["caused"].get(tier, {})),
        _reasons(tenant["suffered"].get(tier, {})),
    )


def _reasons(blocks: dict[str, int]) -> str:
    """Blocks by reason, the greatest first."""
    ordered = sorted(blocks.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{count} {reason}" for reason, count in ordered) or "0"


def _show_tiers(tiers: dict[str, Any]) -> None:
    """The tiers below the device, if there are any."""
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
        [_moves_row(moves) for moves in tiers["moves"]],
    )
    if tiers["disk"] is not None:
        print_table("Disk", ("", ""), [(name, str(n)) for name, n in tiers["disk"].items()])


def percent(rate: float | None) -> str:
    """A share as a person reads it; a dash where there is none."""
    return "-" if rate is None else f"{rate:.1%}"


def _window_row(name: str, window: dict[str, Any]) -> tuple[str, ...]:
    counts = (window[key] for key in ("queried_tokens", "hit_tokens", "computed_tokens"))
    return (name, *map(str, counts), percent(window["hit_rate"]))


def _extent_row(unit: str, extent: dict[str, int]) -> tuple[str, ...]:
    return (unit, *(str(extent[part]) for part in _EXTENT))


def _tenant_row(tenant: dict[str, Any]) -> tuple[str, ...]:
    return (
        tenant["name"] or f"{tenant['id']} (deleted)",
        str(tenant["requests"]),
        str(tenant["prompt_tokens"]),
        percent(tenant["hit_rate"]),
        str(tenant["blocks_held"]),
        str(tenant["evictions_caused"]),
        str(tenant["evictions_suffered"]),
    )


def _tier_row(name: str, tier: dict[str, Any], tiers: dict[str, Any]) -> tuple[str, ...]:
    return (
        name,
        str(tier["total_blocks"]),
        str(tier["used_blocks"]),
        f"{tier['used_bytes'] / _GIB:.2f}",
        str(tiers["hit_tokens"][name]),
        str(tier["loads_chosen"]),
        str(tier["loads_refused"]),
        str(sum(tiers["evictions"].get(name, {}).values())),
    )


def _moves_row(moves: dict[str, Any]) -> tuple[str, ...]:
    rate = moves["gb_per_s"]
    return (
        moves["source"],
        moves["target"],
        str(moves["blocks"]),
        f"{moves['bytes'] / _GIB:.2f}",
        f"{moves['seconds']:.2f}",
        "-" if rate is None else f"{rate:.2f}",
        str(moves["failed"]),
    )


def _engine_rows(stats: dict[str, Any]) -> list[tuple[str, str]]:
    queue, tree = stats["queue"], stats["tree"]
    return [
        ("running, waiting", f"{queue['running']}, {queue['waiting']}"),
        ("tree", f"{tree['nodes']} nodes, {tree['depth']} deep"),
        ("generated tokens", str(stats["generated_tokens"])),
        ("steps", str(stats["steps"])),
        ("preemptions", str(stats["preemptions"])),
        ("up for", f"{stats['uptime_s']:.0f} s"),
        ("fingerprint", stats["fingerprint"]),
    ]
