"""The numbers of the cache as tables for people; machines read the JSON.

Knows: the answer of GET /admin/cache/stats. Does not know: HTTP.
"""

from __future__ import annotations

from typing import Any

from cli.output import print_table

_EXTENT = ("total", "free", "used", "evictable", "leased")


def show(stats: dict[str, Any]) -> None:
    """All tables on standard output."""
    print_table(
        "Prompt tokens",
        ("within", "asked for", "from the cache", "computed", "hit rate"),
        [_window_row(name, window) for name, window in stats["windows"].items()],
    )
    print_table(
        f"Pool (blocks of {stats['pool']['block_size']} tokens)",
        ("", *_EXTENT),
        [_extent_row(unit, stats["pool"][unit]) for unit in ("blocks", "tokens")],
    )
    print_table(
        "Tenants",
        ("tenant", "requests", "prompt tokens", "hit rate", "blocks", "evicted others", "lost"),
        [_tenant_row(tenant) for tenant in stats["tenants"]],
    )
    print_table("Engine", ("", ""), _engine_rows(stats))


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
