"""`ratoon tenants`: the server's users. The users' limits are in `tenant_limits.py`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.operating.admin_client import GROUPS, TENANTS, AdminClient, with_admin
from cli.operating.receipts import must_be_new, receipt_of, summary, write
from cli.operating.tenancy.tenant_limits import TenantArgument, described, quota_of
from cli.options.options import AdminFlags, argument
from cli.output import moment, print_answer, print_rows

NewName = Annotated[str, argument("NAME", "A name not yet taken.")]


def create(
    admin: AdminFlags,
    name: NewName,
    weight: Annotated[
        float,
        typer.Option(help="Share of the engine, relative to other tenants.", min=0.001, max=1000),
    ] = 1.0,
) -> None:
    """Add a tenant.

    It has no key yet: 'ratoon tenants keys create' makes one. Tenants do not share the cache; see
    'ratoon groups' and 'ratoon prefixes' for exceptions.

    Example:

        ratoon tenants create acme --weight 2
    """
    tenant = TENANTS.create(admin, {"name": name, "weight": weight})
    print_answer(tenant, f"Created tenant {tenant['name']} ({tenant['id']}).", as_json=admin.json)


def list_all(admin: AdminFlags) -> None:
    """List the tenants, with their groups, limits and shares of the cache.

    Example:

        ratoon tenants list --json
    """

    async def use(client: AdminClient) -> tuple[list[dict[str, Any]], dict[str, str]]:
        return await client.rows(TENANTS.path, TENANTS.plural), await GROUPS.names(client)

    tenants, groups = with_admin(admin, use)
    # Some columns are stacked, so that most tables fit 80 columns.
    columns = ("name\nid", "state\npriority", "group", "limits", "cache", "created")
    print_rows("Tenants", columns, tenants, lambda one: _row(one, groups), as_json=admin.json)


def disable(admin: AdminFlags, tenant: TenantArgument) -> None:
    """Refuse a tenant's requests (403) until it is enabled again.

    Its keys stay, but none works; its running requests end within five seconds. Its cache, stored
    responses and cached contents are dropped.

    Example:

        ratoon tenants disable acme
    """

    async def use(client: AdminClient) -> tuple[Any, int]:
        path = TENANTS.path_of(await TENANTS.find(client, tenant))
        keys = await client.rows(f"{path}/keys", "keys")
        return await client.call("POST", f"{path}/disable"), sum(key["live"] for key in keys)

    answer, live = with_admin(admin, use)
    said = (
        f"Disabled tenant {tenant}.\n"
        f"Keys that stop working until it is enabled: {live}.\n"
        "Running requests end within five seconds. What it had in the cache is dropped."
    )
    print_answer(answer, said, as_json=admin.json)


def enable(admin: AdminFlags, tenant: TenantArgument) -> None:
    """Let a disabled tenant's keys work again.

    Example:

        ratoon tenants enable acme
    """
    TENANTS.change(admin, "POST", tenant, "enable", said=f"Enabled tenant {tenant}.")


def usage_tiers(
    admin: AdminFlags,
    tenant: TenantArgument,
    show: Annotated[bool, typer.Option("--show/--hide", help="Whether answers show the tiers.")],
) -> None:
    """Choose whether a tenant's usage says from which tiers its cached tokens came.

    The tiers are hidden by default: if tenants share the room of the cache ('--cache-sharing
    pooled'), the tiers show how much other tenants send. Answers to requests with the operator's
    key always show them.

    Example:

        ratoon tenants usage-tiers acme --show
    """
    told = "is told" if show else "is not told"
    said = f"Tenant {tenant} {told} from which tiers its tokens came."
    TENANTS.change(admin, "PATCH", tenant, body={"usage_tiers": show}, said=said)


def canonical_prompts(
    admin: AdminFlags,
    tenant: TenantArgument,
    on: Annotated[bool, typer.Option("--on/--off", help="Whether variation is removed.")],
) -> None:
    """Choose whether variation without meaning is removed from a tenant's prompts.

    Claude Code's billing header is left out of system prompts, the keys that define a tool get one
    order, and an agent's tagged environment moves from the system prompt to the first user turn.
    Nothing else is changed. At /v1/messages the header is left out for every tenant.

    Example:

        ratoon tenants canonical-prompts acme --on
    """
    said = f"Prompts of tenant {tenant} are {'canonical' if on else 'as they are sent'}."
    TENANTS.change(admin, "PATCH", tenant, body={"canonical_prompts": on}, said=said)


def delete(
    admin: AdminFlags,
    tenant: TenantArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    receipt: Annotated[
        Path | None,
        typer.Option(help="A new file for a signed receipt of the erasure; takes seconds."),
    ] = None,
) -> None:
    """Remove a tenant and all of its keys, for good, and erase what it has in the cache.

    Example:

        ratoon tenants delete acme --yes --receipt acme.json
    """
    if receipt is not None:
        must_be_new(receipt)
    if not yes:
        typer.confirm(f"Delete tenant {tenant} and all of its keys?", abort=True, err=True)

    async def use(client: AdminClient) -> tuple[Any, Any]:
        deleted = await client.call("DELETE", TENANTS.path_of(await TENANTS.find(client, tenant)))
        return deleted, None if receipt is None else await receipt_of(client, deleted["id"])

    deleted, signed = with_admin(admin, use)
    said = f"Deleted tenant {tenant} ({deleted['id']})."
    if receipt is not None:
        write(receipt, signed)
        said = f"{said}\nWrote {receipt}: {summary(signed['receipt'])}"
    print_answer(signed or deleted, said, as_json=admin.json)


def state_of(tenant: dict[str, Any]) -> str:
    """Return a word that says whether the tenant's requests are served."""
    return "disabled" if tenant.get("disabled") else "enabled"


def _row(tenant: dict[str, Any], groups: Mapping[str, str]) -> tuple[str, ...]:
    group = tenant.get("group_id")
    return (
        f"{tenant['name']}\n{tenant['id']}",
        f"{state_of(tenant)}\n{tenant.get('priority', 'interactive')}",
        groups.get(group, group) if group else "-",
        ", ".join(line.strip() for line in described(tenant.get("limits", {}))),
        quota_of(tenant),
        moment(tenant.get("created_at")),
    )
