"""How full each tier of the cache is, as cells of a table."""

from __future__ import annotations

from typing import Any

TIER_COLUMNS = ("tier", "used", "total", "full")


def tier_rows(stats: dict[str, Any]) -> list[tuple[object, ...]]:
    """A row of each tier in the answer of GET /admin/cache/stats, in blocks."""
    pool = stats["pool"]["blocks"]
    lower = stats["tiers"]["lower"].items()
    return [
        _row("device", pool["used"], pool["total"]),
        *(_row(name, tier["used_blocks"], tier["total_blocks"]) for name, tier in lower),
    ]


def _row(tier: str, used: int, total: int) -> tuple[object, ...]:
    return tier, used, total, f"{used / total:.0%}" if total else "-"
