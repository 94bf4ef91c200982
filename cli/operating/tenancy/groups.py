"""`ratoon groups`: tenants that trust each other."""

from typing import Annotated, Any

from cli.operating.admin_client import GROUPS, TENANTS, AdminClient, with_admin
from cli.operating.tenancy.tenant_limits import TenantArgument
from cli.operating.tenancy.tenants import NewName
from cli.options.options import AdminFlags, argument
from cli.output import moment, print_answer, print_rows

GroupArgument = Annotated[str, argument("GROUP", "The group's name or id.")]


def create(admin: AdminFlags, name: NewName) -> None:
    """Add a group; 'ratoon groups join' puts tenants into it.

    Example:

        ratoon groups create research
    """
    group = GROUPS.create(admin, {"name": name})
    print_answer(group, f"Created group {group['name']} ({group['id']}).", as_json=admin.json)


def list_all(admin: AdminFlags) -> None:
    """List the groups and their members.

    Example:

        ratoon groups list --json
    """

    async def use(client: AdminClient) -> list[dict[str, Any]]:
        groups = await client.rows(GROUPS.path, GROUPS.plural)
        tenants = await client.rows(TENANTS.path, TENANTS.plural)
        return [{**group, "members": _members(group["id"], tenants)} for group in groups]

    columns = ("name", "id", "members", "created")
    print_rows("Groups", columns, with_admin(admin, use), _row, as_json=admin.json)


def delete(admin: AdminFlags, group: GroupArgument) -> None:
    """Remove a group without members.

    Example:

        ratoon groups delete research
    """
    GROUPS.change(admin, "DELETE", group, said=f"Deleted group {group}.")


def join(admin: AdminFlags, group: GroupArgument, tenant: TenantArgument) -> None:
    """Put a tenant into a group; it leaves its former group.

    Example:

        ratoon groups join research acme
    """

    async def use(client: AdminClient) -> Any:
        body = {"group_id": await GROUPS.find(client, group)}
        path = TENANTS.path_of(await TENANTS.find(client, tenant))
        return await client.call("PATCH", path, body)

    answer = with_admin(admin, use)
    print_answer(answer, f"Tenant {tenant} is now in group {group}.", as_json=admin.json)


def leave(admin: AdminFlags, tenant: TenantArgument) -> None:
    """Take a tenant out of its group.

    Example:

        ratoon groups leave acme
    """
    said = f"Tenant {tenant} is now in no group."
    TENANTS.change(admin, "PATCH", tenant, body={"group_id": None}, said=said)


def _row(group: dict[str, Any]) -> tuple[str, ...]:
    members = ", ".join(member["name"] for member in group["members"])
    return group["name"], group["id"], members, moment(group["created_at"])


def _members(group_id: str, tenants: list[dict[str, Any]]) -> list[dict[str, str]]:
    members = (one for one in tenants if one.get("group_id") == group_id)
    return [{"id": one["id"], "name": one["name"]} for one in members]
