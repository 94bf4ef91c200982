"""`ratoon tenants limits`: what a tenant may use.

Knows: the flags of limits and how limits are shown. Does not know: what a limit does, nor how
requests are made (`admin_client`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import typer

from cli.admin_client import AdminClient, with_admin
from cli.client_options import AdminFlags
from cli.output import print_answer
from cli.tenants import TenantArgument, find_tenant, tenant_path

PeriodName = Literal["month", "total"]
PriorityName = Literal["interactive", "batch"]


@dataclass(frozen=True, slots=True)
class LimitFlags:
    """The limits to set; 0 removes a limit, one that is left out stays."""

    requests_per_minute: Annotated[
        int | None, typer.Option(min=0, help="Requests a minute.", show_default=False)
    ] = None
    tokens_per_minute: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Tokens a minute, computed and generated ones; cached ones do not count.",
            show_default=False,
        ),
    ] = None
    burst_s: Annotated[
        float | None,
        typer.Option(
            "--burst-s",
            min=0,
            max=60,
            help="How much may come at once: the rate of this many seconds. Without it: 60.",
            show_default=False,
        ),
    ] = None
    max_concurrent: Annotated[
        int | None, typer.Option(min=0, help="Requests at once.", show_default=False)
    ] = None


@dataclass(frozen=True, slots=True)
class BudgetFlags:
    """What may be spent."""

    budget: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Units of the server's --price-... flags; 0 removes the budget.",
            show_default=False,
        ),
    ] = None
    period: Annotated[
        PeriodName | None,
        typer.Option(help="In which the budget may be spent: 'month' without this."),
    ] = None


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

    async def use(client: AdminClient) -> Any:
        path = tenant_path(await find_tenant(client, tenant))
        record = await client.call("GET", path)
        change: dict[str, Any] = {} if priority is None else {"priority": priority}
        changed = changed_limits(record.get("limits", {}), rates, spending)
        if changed != record.get("limits", {}):
            change["limits"] = changed
        return await client.call("PATCH", path, change) if change else record

    record = with_admin(admin, use)
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
