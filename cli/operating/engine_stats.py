"""The engine's counters, where an engine need not be there."""

from __future__ import annotations

from typing import Any

from cli.errors import ServerRefused
from cli.operating.admin_client import AdminClient

STATS = "/admin/cache/stats"
_NO_ENGINE = 503


async def stats_of(client: AdminClient) -> dict[str, Any] | None:
    """The answer of GET /admin/cache/stats; None where no engine answers.

    Raises as `AdminClient.call` for everything else.
    """
    try:
        stats: dict[str, Any] = await client.call("GET", STATS)
    except ServerRefused as refused:
        if refused.status != _NO_ENGINE:
            raise
        return None
    return stats
