"""`ratoon cache`: statistics of the prefix cache of a running server, and flushing it.

Knows: the admin routes of the cache. Does not know: how their numbers are shown (`cache_tables`).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.admin_client import AdminClient, with_admin
from cli.cache_tables import show, show_evictions
from cli.client_options import AdminFlags
from cli.output import print_answer, print_json
from cli.tenants import find_tenant

STATS = "/admin/cache/stats"
EVICTIONS = "/admin/cache/evictions"
FLUSH = "/admin/cache/flush"


def stats(admin: AdminFlags) -> None:
    """Show what the cache holds, and its hit rates.

    The hit rate is the share of prompt tokens that were found in the cache, over the last minute,
    the last ten minutes, and since the engine's start.

    Example:

        ratoon cache stats --json | jq '.windows.all.hit_rate'
    """
    answer = with_admin(admin, lambda client: client.call("GET", STATS))
    if admin.json:
        print_json(answer)
        return
    show(answer)


def evictions(admin: AdminFlags) -> None:
    """List the last evictions between tenants: whose blocks were evicted, for whom, and why.

    Example:

        ratoon cache evictions --json | jq '.[0]'
    """
    rows = with_admin(admin, lambda client: client.rows(EVICTIONS, "evictions"))
    if admin.json:
        print_json(rows)
        return
    show_evictions(rows)


def flush(
    admin: AdminFlags,
    tenant: Annotated[
        str | None, typer.Option(help="Only those of this tenant, by name or id.")
    ] = None,
) -> None:
    """Forget cached prefixes, of one tenant or of all.

    Blocks that running requests hold are forgotten when these end.

    Example:

        ratoon cache flush --tenant acme
    """

    async def use(client: AdminClient) -> Any:
        body = {} if tenant is None else {"tenant": await find_tenant(client, tenant)}
        return await client.call("POST", FLUSH, body)

    answer = with_admin(admin, use)
    print_answer(answer, f"Forgot {answer['flushed_blocks']} blocks.", as_json=admin.json)
