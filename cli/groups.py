"""`ratoon groups`: tenants that trust each other.

Knows: the admin routes of groups and how groups are shown. Does not know: how requests are made
(`admin_client`).
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.admin_client import AdminClient, with_admin
from cli.client_options import AdminFlags
from cli.errors import BadSetting
from cli.output import moment, print_answer, print_json, print_table
from cli.tenants import TenantArgument, find_tenant, tenant_path

GROUPS = "/admin/groups"
GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group's name or id.", show_default=False)
]


async def find_group(client: AdminClient, name_or_id: str) -> str:
    """The id of a group given by id or by name; BadSetting when there is none."""
    for group in await client.rows(GROUPS, "groups"):
        if name_or_id in (group["id"], group["name"]):
            return str(group["id"])
    raise BadSetting("GROUP", f"there is no group '{name_or_id}'; see 'ratoon groups list'")


def create(
    admin: AdminFlags,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Its name; must be unique.", show_default=False)
    ],
) -> None:
    """Add a group; 'ratoon groups join' puts tenants into it.

    Example:

        ratoon groups create research
    """
    group = with_admin(admin, lambda client: client.call("POST", GROUPS, {"name": name}))
    print_answer(group, f"Created group {group['name']} ({group['id']}).", as_json=admin.json)


def list_all(admin: AdminFlags) -> None:
    """List the groups.

    Example:

        ratoon groups list --json
    """
    groups = with_admin(admin, lambda client: client.rows(GROUPS, "groups"))
    if admin.json:
        print_json(groups)
        return
    rows = ((group["name"], group["id"], moment(group["created_at"])) for group in groups)
    print_table("Groups", ("name", "id", "created"), rows)


def delete(admin: AdminFlags, group: GroupArgument) -> None:
    """Remove a group without members.

    Example:

        ratoon groups delete research
    """

    async def use(client: AdminClient) -> Any:
        group_id = await find_group(client, group)
        return await client.call("DELETE", f"{GROUPS}/{quote(group_id, safe='')}")

    print_answer(with_admin(admin, use), f"Deleted group {group}.", as_json=admin.json)


def join(admin: AdminFlags, group: GroupArgument, tenant: TenantArgument) -> None:
    """Put a tenant into a group; it leaves its former group.

    Example:

        ratoon groups join research acme
    """

    async def use(client: AdminClient) -> Any:
        body = {"group_id": await find_group(client, group)}
        path = tenant_path(await find_tenant(client, tenant))
        return await client.call("PATCH", path, body)

    print_answer(
        with_admin(admin, use), f"Tenant {tenant} is now in group {group}.", as_json=admin.json
    )


def leave(admin: AdminFlags, tenant: TenantArgument) -> None:
    """Take a tenant out of its group.

    Example:

        ratoon groups leave acme
    """

    async def use(client: AdminClient) -> Any:
        path = tenant_path(await find_tenant(client, tenant))
        return await client.call("PATCH", path, {"group_id": None})

    print_answer(with_admin(admin, use), f"Tenant {tenant} is now in no group.", as_json=admin.json)
