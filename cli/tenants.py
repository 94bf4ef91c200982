"""`ratoon tenants`: who may use the server.

Knows: the admin routes of tenants and how tenants are shown. Does not know: keys (`tenant_keys`),
nor how requests are made (`admin_client`).
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.admin_client import AdminClient, with_admin
from cli.client_options import AdminFlags
from cli.errors import BadSetting
from cli.output import moment, print_answer, print_json, print_table

TENANTS = "/admin/tenants"
TenantArgument = Annotated[
    str, typer.Argument(metavar="TENANT", help="The tenant's name or id.", show_default=False)
]


def tenant_path(tenant_id: str, *more: str) -> str:
    """The admin path of a tenant, or of something below it."""
    return "/".join([TENANTS, *(quote(part, safe="") for part in (tenant_id, *more))])


async def find_tenant(client: AdminClient, name_or_id: str) -> str:
    """The id of a tenant given by id or by name; BadSetting when there is none."""
    for tenant in await client.rows(TENANTS, "tenants"):
        if name_or_id in (tenant["id"], tenant["name"]):
            return str(tenant["id"])
    raise BadSetting("TENANT", f"there is no tenant '{name_or_id}'; see 'ratoon tenants list'")


def create(
    admin: AdminFlags,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Its name; must be unique.", show_default=False)
    ],
    weight: Annotated[
        float,
        typer.Option(help="Its share of the engine compared with others.", min=0.001, max=1000),
    ] = 1.0,
) -> None:
    """Add a tenant.

    It has no key yet: 'ratoon tenants keys create' makes one. Tenants do not share the cache; see
    'ratoon groups' and 'ratoon prefixes' for exceptions.

    Example:

        ratoon tenants create acme --weight 2
    """
    body = {"name": name, "weight": weight}
    tenant = with_admin(admin, lambda client: client.call("POST", TENANTS, body))
    print_answer(tenant, f"Created tenant {tenant['name']} ({tenant['id']}).", as_json=admin.json)


def list_all(admin: AdminFlags) -> None:
    """List the tenants.

    Example:

        ratoon tenants list --json
    """
    tenants = with_admin(admin, lambda client: client.rows(TENANTS, "tenants"))
    if admin.json:
        print_json(tenants)
        return
    print_table("Tenants", ("name", "id", "state", "weight", "created"), map(_row, tenants))


def disable(admin: AdminFlags, tenant: TenantArgument) -> None:
    """Refuse a tenant's requests (403) until it is enabled again; its keys stay.

    Example:

        ratoon tenants disable acme
    """
    _switch(admin, tenant, "disable", "Disabled")


def enable(admin: AdminFlags, tenant: TenantArgument) -> None:
    """Let a disabled tenant's keys work again.

    Example:

        ratoon tenants enable acme
    """
    _switch(admin, tenant, "enable", "Enabled")


def delete(
    admin: AdminFlags,
    tenant: TenantArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a tenant and all of its keys, for good.

    Example:

        ratoon tenants delete acme --yes
    """
    if not yes:
        typer.confirm(f"Delete tenant {tenant} and all of its keys?", abort=True, err=True)

    async def use(client: AdminClient) -> Any:
        return await client.call("DELETE", tenant_path(await find_tenant(client, tenant)))

    answer = with_admin(admin, use)
    print_answer(answer, f"Deleted tenant {tenant}.", as_json=admin.json)


def _switch(admin: AdminFlags, tenant: str, verb: str, done: str) -> None:
    async def use(client: AdminClient) -> Any:
        return await client.call("POST", tenant_path(await find_tenant(client, tenant), verb))

    answer = with_admin(admin, use)
    print_answer(answer, f"{done} tenant {tenant}.", as_json=admin.json)


def _row(tenant: dict[str, Any]) -> tuple[str, ...]:
    return (
        tenant["name"],
        tenant["id"],
        "disabled" if tenant.get("disabled") else "enabled",
        f"{tenant.get('weight', 1.0):g}",
        moment(tenant.get("created_at")),
    )
