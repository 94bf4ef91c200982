"""`ratoon tenants`: who may use the server, how much, and which share of the cache is whose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Literal

import typer

from cli.operating.admin_client import GROUPS, TENANTS, AdminClient, with_admin
from cli.options.flags import plain_field
from cli.options.options import AdminFlags, argument
from cli.output import moment, print_answer, print_rows

TenantArgument = Annotated[str, argument("TENANT", "The tenant's name or id.")]
NewName = Annotated[str, argument("NAME", "Its name; must be unique.")]
PeriodName = Literal["month", "total"]
PriorityName = Literal["interactive", "batch"]

_limit_field = partial(plain_field, min=0, show_default=False)
_share = partial(typer.Option, min=0, max=1, show_default=False)


@dataclass(frozen=True, slots=True)
class LimitFlags:
    """The limits to set; 0 removes a limit, one that is left out stays."""

    requests_per_minute: int | None = _limit_field(None, help="Requests a minute.")
    tokens_per_minute: int | None = _limit_field(
        None, help="Tokens a minute, computed and generated ones; cached ones do not count."
    )
    burst_s: float | None = _limit_field(
        None,
        max=60,
        help="How much may come at once: the rate of this many seconds. Without it: 60.",
    )
    max_concurrent: int | None = _limit_field(None, help="Requests at once.")


@dataclass(frozen=True, slots=True)
class BudgetFlags:
    """What may be spent."""

    budget: float | None = _limit_field(
        None, help="Units of the server's --price-... flags; 0 removes the budget."
    )
    period: PeriodName | None = plain_field(
        None, help="In which the budget may be spent: 'month' without this."
    )


def create(
    admin: AdminFlags,
    name: NewName,
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
    # Some are one above the other: so most fit 80 columns.
    columns = ("name\nid", "state\npriority", "group", "limits", "cache", "created")
    print_rows("Tenants", columns, tenants, lambda one: _row(one, groups), as_json=admin.json)


def disable(admin: AdminFlags, tenant: TenantArgument) -> None:
    """Refuse a tenant's requests (403) until it is enabled again; its cache is dropped.

    Its keys stay, but none works; its running requests end within five seconds.

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
    show: Annotated[bool, typer.Option("--show/--hide", help="Whether it is told.")],
) -> None:
    """Choose whether a tenant's usage says from which tiers its cached tokens came.

    They are hidden at first: where tenants share the room of the cache ('--cache-sharing pooled')
    they tell one how much the others ask. Requests that bear the operator's key are always told.

    Example:

        ratoon tenants usage-tiers acme --show
    """
    told = "is told" if show else "is not told"
    said = f"Tenant {tenant} {told} from which tiers its tokens came."
    TENANTS.change(admin, "PATCH", tenant, body={"usage_tiers": show}, said=said)


def canonical_prompts(
    admin: AdminFlags,
    tenant: TenantArgument,
    on: Annotated[bool, typer.Option("--on/--off", help="Whether they are.")],
) -> None:
    """Choose whether what varies without meaning is taken out of a tenant's prompts.

    Claude Code's billing header is left out of system prompts, and the keys that define a tool get
    one order. Nothing else is changed: not the order of tools, lists or arguments, and no text.
    At /v1/messages the header is left out for every tenant.

    Example:

        ratoon tenants canonical-prompts acme --on
    """
    said = f"Prompts of tenant {tenant} are {'canonical' if on else 'as they are sent'}."
    TENANTS.change(admin, "PATCH", tenant, body={"canonical_prompts": on}, said=said)


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
    TENANTS.change(admin, "DELETE", tenant, said=f"Deleted tenant {tenant}.")


def limits(
    admin: AdminFlags,
    tenant: TenantArgument,
    rates: LimitFlags,
    spending: BudgetFlags,
    priority: Annotated[
        PriorityName | None,
        typer.Option(help="'batch' waits for 'interactive', within bounds.", show_default=False),
    ] = None,
) -> None:
    """Show or change what a tenant may use; 0 removes a limit.

    Examples:

        ratoon tenants limits acme --requests-per-minute 600 --tokens-per-minute 100000

        ratoon tenants limits acme --budget 50 --period month
    """

    def change(record: dict[str, Any]) -> dict[str, Any]:
        changed = changed_limits(record.get("limits", {}), rates, spending)
        limits = {} if changed == record.get("limits", {}) else {"limits": changed}
        return limits if priority is None else {"priority": priority, **limits}

    record = _changed(admin, tenant, change)
    words = [
        f"Tenant {record['name']} ({record.get('priority', 'interactive')}):",
        *described(record.get("limits", {})),
    ]
    print_answer(record, "\n".join(words), as_json=admin.json)


def changed_limits(now: dict[str, Any], rates: LimitFlags, spending: BudgetFlags) -> dict[str, Any]:
    """The limits `now` with what the flags give."""
    given = {name: value for name, value in asdict(rates).items() if value is not None}
    budget = dict(now.get("budget") or {})
    if spending.budget is not None:
        budget["units"] = spending.budget
    if spending.period is not None and budget:
        budget["period"] = spending.period
    wanted = {**now, **given, "budget": budget if budget.get("units") else None}
    return {name: value for name, value in wanted.items() if value}


def described(limits: dict[str, Any]) -> list[str]:
    """A line for each limit."""
    lines = [
        f"  {name.replace('_', ' ')}: {limits[name]:.10g}"
        for name in LimitFlags.__dataclass_fields__
        if limits.get(name)
    ]
    if budget := limits.get("budget"):
        lines.append(f"  budget: {budget['units']:.10g} units, {budget.get('period', 'month')}")
    return lines or ["  no limits"]


def quota(
    admin: AdminFlags,
    tenant: TenantArgument,
    floor: Annotated[
        float | None, _share(help="Share of every tier that other tenants cannot take from it.")
    ] = None,
    ceiling: Annotated[
        float | None, _share(help="Largest share of every tier that it keeps; 1: no ceiling.")
    ] = None,
) -> None:
    """Show or change a tenant's share of the cache.

    What is left above the floors is divided by weight. By default each tenant has the share that
    follows from that for itself. With '--cache-sharing pooled' others may use what a tenant does
    not; then a tenant whose ceiling equals its floor has a fixed part, and learns little of others.

    Example:

        ratoon tenants quota acme --floor 0.2 --ceiling 0.5
    """
    given = {"floor": floor, "ceiling": ceiling}
    wanted = {name: share for name, share in given.items() if share is not None}

    def change(record: dict[str, Any]) -> dict[str, Any]:
        return {"cache": {**record.get("cache", {}), **wanted}} if wanted else {}

    record = _changed(admin, tenant, change)
    print_answer(record, f"Tenant {record['name']}: {quota_of(record)}", as_json=admin.json)


def quota_of(record: dict[str, Any]) -> str:
    """A tenant's share of the cache in words."""
    now = record.get("cache", {})
    return (
        f"floor {now.get('floor', 0.0):g}, ceiling {now.get('ceiling', 1.0):g}, "
        f"weight {record.get('weight', 1.0):g}"
    )


def _changed(
    admin: AdminFlags, tenant: str, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """A tenant's record, after what `change` wants to be changed of it."""

    async def use(client: AdminClient) -> dict[str, Any]:
        path = TENANTS.path_of(await TENANTS.find(client, tenant))
        record: dict[str, Any] = await client.call("GET", path)
        wanted = change(record)
        return await client.call("PATCH", path, wanted) if wanted else record

    return with_admin(admin, use)


def state_of(tenant: dict[str, Any]) -> str:
    """Whether the tenant's requests are served, in a word."""
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
