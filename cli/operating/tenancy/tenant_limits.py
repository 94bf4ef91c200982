"""`ratoon tenants limits` and `quota`: a tenant's limits, and its share of the cache."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Literal

import typer

from cli.operating.admin_client import TENANTS, AdminClient, with_admin
from cli.options.flags import plain_field
from cli.options.options import AdminFlags, argument
from cli.output import print_answer

TenantArgument = Annotated[str, argument("TENANT", "The tenant's name or id.")]
PeriodName = Literal["month", "total"]
PriorityName = Literal["interactive", "batch"]

_limit_field = partial(plain_field, min=0, show_default=False)
_share = partial(typer.Option, min=0, max=1, show_default=False)


@dataclass(frozen=True, slots=True)
class LimitFlags:
    """The limits to set. 0 removes a limit, and an omitted limit stays."""

    requests_per_minute: int | None = _limit_field(None, help="Requests a minute.")
    tokens_per_minute: int | None = _limit_field(
        None, help="Tokens a minute, computed or generated; cached tokens do not count."
    )
    burst_s: float | None = _limit_field(
        None,
        max=60,
        help="Seconds of its rates that a tenant may use at once. Default: 60.",
    )
    max_concurrent: int | None = _limit_field(None, help="Running requests.")
    max_request_tokens: int | None = _limit_field(
        None,
        help="Tokens of a request and its answer.",
    )


@dataclass(frozen=True, slots=True)
class BudgetFlags:
    """The budgets to set."""

    budget: float | None = _limit_field(
        None, help="Units of the server's --price-... flags; 0 removes the budget."
    )
    period: PeriodName | None = plain_field(None, help="Period of the budget. Default: 'month'.")


def limits(
    admin: AdminFlags,
    tenant: TenantArgument,
    rates: LimitFlags,
    spending: BudgetFlags,
    priority: Annotated[
        PriorityName | None,
        typer.Option(
            help="'batch' requests wait for 'interactive' ones, within bounds.", show_default=False
        ),
    ] = None,
    target_itl_ms: Annotated[
        float | None,
        typer.Option(
            help="Milliseconds that 99 of 100 gaps between tokens stay "
            "within, in place of the server's; requests of 'batch' have no target.",
            min=0,
            max=60_000,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show or change a tenant's limits; 0 removes a limit.

    Examples:

        ratoon tenants limits acme --requests-per-minute 600 --tokens-per-minute 100000

        ratoon tenants limits acme --budget 50 --period month
    """

    def change(record: dict[str, Any]) -> dict[str, Any]:
        changed = changed_limits(record.get("limits", {}), rates, spending)
        limits = {} if changed == record.get("limits", {}) else {"limits": changed}
        told = {"priority": priority, "target_itl_ms": target_itl_ms}
        return {name: value for name, value in told.items() if value is not None} | limits

    record = _changed(admin, tenant, change)
    target = record.get("target_itl_ms", 0.0)
    words = [
        f"Tenant {record['name']} ({record.get('priority', 'interactive')}):",
        *([f"  target between tokens: {target:g} ms"] if target else []),
        *described(record.get("limits", {})),
    ]
    print_answer(record, "\n".join(words), as_json=admin.json)


def changed_limits(now: dict[str, Any], rates: LimitFlags, spending: BudgetFlags) -> dict[str, Any]:
    """Return the limits `now`, changed as the flags say."""
    given = {name: value for name, value in asdict(rates).items() if value is not None}
    budget = dict(now.get("budget") or {})
    if spending.budget is not None:
        budget["units"] = spending.budget
    if spending.period is not None and budget:
        budget["period"] = spending.period
    wanted = {**now, **given, "budget": budget if budget.get("units") else None}
    return {name: value for name, value in wanted.items() if value}


def described(limits: dict[str, Any]) -> list[str]:
    """Describe each limit in a line."""
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
        float | None, _share(help="Share of every tier that other tenants cannot take.")
    ] = None,
    ceiling: Annotated[
        float | None,
        _share(help="Largest share of every tier that the tenant keeps; 1: no ceiling."),
    ] = None,
) -> None:
    """Show or change a tenant's share of the cache.

    The room above all floors is divided by weight. By default the resulting share is the tenant's
    alone. With '--cache-sharing pooled', other tenants may use what a tenant does not use; then a
    tenant whose ceiling equals its floor has a fixed share, and learns little about other tenants.

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
    """Describe a tenant's share of the cache in words."""
    now = record.get("cache", {})
    return (
        f"floor {now.get('floor', 0.0):g}, ceiling {now.get('ceiling', 1.0):g}, "
        f"weight {record.get('weight', 1.0):g}"
    )


def _changed(
    admin: AdminFlags, tenant: str, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    async def use(client: AdminClient) -> dict[str, Any]:
        path = TENANTS.path_of(await TENANTS.find(client, tenant))
        record: dict[str, Any] = await client.call("GET", path)
        wanted = change(record)
        return await client.call("PATCH", path, wanted) if wanted else record

    return with_admin(admin, use)
