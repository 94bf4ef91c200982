"""`ratoon tenants quota`: a tenant's share of the cache.

Knows: the flags of a quota and how they are shown. Does not know: how the cache keeps it, nor
how requests are made (`admin_client`).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.admin_client import AdminClient, with_admin
from cli.client_options import AdminFlags
from cli.output import print_answer
from cli.tenants import TenantArgument, find_tenant, tenant_path


def _share(help_text: str) -> Any:
    return typer.Option(min=0, max=1, help=help_text, show_default=False)


def quota(
    admin: AdminFlags,
    tenant: TenantArgument,
    floor: Annotated[
        float | None,
        _share("Share of every tier that other tenants cannot take from it."),
    ] = None,
    ceiling: Annotated[
        float | None,
        _share("Largest share of every tier that it keeps; 1: no ceiling."),
    ] = None,
) -> None:
    """Show or change a tenant's share of the cache.

    What is left above the floors is divided by weight, and others may use what a tenant does not.
    A tenant whose ceiling equals its floor has a fixed part for itself, and its hits tell it
    nothing about others.

    Example:

        ratoon tenants quota acme --floor 0.2 --ceiling 0.5
    """
    given = {"floor": floor, "ceiling": ceiling}

    async def use(client: AdminClient) -> Any:
        path = tenant_path(await find_tenant(client, tenant))
        record = await client.call("GET", path)
        wanted = {name: share for name, share in given.items() if share is not None}
        if not wanted:
            return record
        return await client.call("PATCH", path, {"cache": {**record.get("cache", {}), **wanted}})

    record = with_admin(admin, use)
    now = record.get("cache", {})
    words = (
        f"Tenant {record['name']}: floor {now.get('floor', 0.0):g}, "
        f"ceiling {now.get('ceiling', 1.0):g}, weight {record.get('weight', 1.0):g}"
    )
    print_answer(record, words, as_json=admin.json)
