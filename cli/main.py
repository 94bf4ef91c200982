"""The `ratoon` command: which sub-commands there are.

Knows: names. Does not know: what the commands do, nor their flags.
"""

from __future__ import annotations

from importlib.metadata import version as distribution_version

import typer

from cli import (
    apart,
    bench,
    cache,
    groups,
    ledger,
    plan,
    prefixes,
    serve,
    simulate,
    tenant_keys,
    tenant_limits,
    tenant_quota,
    tenants,
    verify_isolation,
)
from cli.flags import flattened


def version() -> None:
    """Print the version.

    Example:

        ratoon version
    """
    typer.echo(f"ratoon {distribution_version('ratoon')}")


def build_app() -> typer.Typer:
    """The whole command line."""
    app = _group(
        "A multi-tenant inference gateway that treats the prompt cache as its product.\n\n"
        "'ratoon serve' starts everything on one machine; the other commands talk to it. Every "
        "flag can be given as a variable, named in [yellow]\\[env var][/yellow] beside it."
    )
    app.command("serve", rich_help_panel="Serve")(flattened(serve.serve))
    app.command("gateway", rich_help_panel="Serve")(flattened(apart.gateway))
    app.command("engine", rich_help_panel="Serve")(flattened(apart.engine))
    app.add_typer(_tenants(), name="tenants", rich_help_panel="Operate")
    app.add_typer(_groups(), name="groups", rich_help_panel="Operate")
    app.add_typer(_prefixes(), name="prefixes", rich_help_panel="Operate")
    app.add_typer(_cache(), name="cache", rich_help_panel="Operate")
    app.command("usage", rich_help_panel="Operate")(flattened(ledger.usage))
    app.command("audit", rich_help_panel="Operate")(flattened(ledger.audit))
    app.command("verify-isolation", rich_help_panel="Operate")(
        flattened(verify_isolation.verify_isolation)
    )
    app.command("bench", rich_help_panel="Measure")(flattened(bench.bench))
    app.command("simulate", rich_help_panel="Measure")(flattened(simulate.simulate))
    app.command("plan", rich_help_panel="Measure")(flattened(plan.plan))
    app.command("version", rich_help_panel="Measure")(version)
    return app


def main() -> None:
    """Entry point of the `ratoon` script."""
    build_app()()


def _tenants() -> typer.Typer:
    group = _group("Who may use a running server: tenants and their keys.")
    group.command("create")(flattened(tenants.create))
    group.command("list")(flattened(tenants.list_all))
    group.command("limits")(flattened(tenant_limits.limits))
    group.command("quota")(flattened(tenant_quota.quota))
    group.command("disable")(flattened(tenants.disable))
    group.command("enable")(flattened(tenants.enable))
    group.command("delete")(flattened(tenants.delete))
    keys = _group("A tenant's keys. An issued key is shown once.")
    keys.command("create")(flattened(tenant_keys.create))
    keys.command("list")(flattened(tenant_keys.list_all))
    keys.command("rotate")(flattened(tenant_keys.rotate))
    keys.command("revoke")(flattened(tenant_keys.revoke))
    group.add_typer(keys, name="keys")
    return group


def _groups() -> typer.Typer:
    group = _group("Tenants of a running server that trust each other.")
    group.command("create")(flattened(groups.create))
    group.command("list")(flattened(groups.list_all))
    group.command("join")(flattened(groups.join))
    group.command("leave")(flattened(groups.leave))
    group.command("delete")(flattened(groups.delete))
    return group


def _prefixes() -> typer.Typer:
    group = _group("Prompts of a running server that many tenants begin with.")
    group.command("create")(flattened(prefixes.create))
    group.command("list")(flattened(prefixes.list_all))
    group.command("show")(flattened(prefixes.show))
    group.command("delete")(flattened(prefixes.delete))
    return group


def _cache() -> typer.Typer:
    group = _group("The prefix cache of a running server.")
    group.command("stats")(flattened(cache.stats))
    group.command("evictions")(flattened(cache.evictions))
    group.command("flush")(flattened(cache.flush))
    return group


def _group(help_text: str) -> typer.Typer:
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_show_locals=False,  # they may hold keys
    )
