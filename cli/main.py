"""The `ratoon` command: which sub-commands there are.

Knows: names. Does not know: what the commands do, nor their flags.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version as distribution_version

import typer

from cli import (
    bench,
    cache,
    groups,
    ledger,
    plan,
    prefixes,
    serve,
    simulate,
    standalone,
    tenant_keys,
    tenant_limits,
    tenant_quota,
    tenants,
    verify_isolation,
)
from cli.flags import flattened

Command = Callable[..., None]


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
    _add(app, "Serve", serve=serve.serve, gateway=standalone.gateway, engine=standalone.engine)
    app.add_typer(_tenants(), name="tenants", rich_help_panel="Operate")
    app.add_typer(_groups(), name="groups", rich_help_panel="Operate")
    app.add_typer(_prefixes(), name="prefixes", rich_help_panel="Operate")
    app.add_typer(_cache(), name="cache", rich_help_panel="Operate")
    _add(
        app,
        "Operate",
        usage=ledger.usage,
        audit=ledger.audit,
        verify_isolation=verify_isolation.verify_isolation,
    )
    _add(
        app,
        "Measure",
        bench=bench.bench,
        simulate=simulate.simulate,
        plan=plan.plan,
        version=version,
    )
    return app


def main() -> None:
    """Entry point of the `ratoon` script."""
    build_app()()


def _tenants() -> typer.Typer:
    group = _group(
        "Tenants of a running server, their keys, limits and cache quotas.",
        create=tenants.create,
        list=tenants.list_all,
        limits=tenant_limits.limits,
        quota=tenant_quota.quota,
        disable=tenants.disable,
        enable=tenants.enable,
        delete=tenants.delete,
    )
    group.add_typer(_keys(), name="keys")
    return group


def _keys() -> typer.Typer:
    return _group(
        "A tenant's keys. An issued key is shown once.",
        create=tenant_keys.create,
        list=tenant_keys.list_all,
        rotate=tenant_keys.rotate,
        revoke=tenant_keys.revoke,
    )


def _groups() -> typer.Typer:
    return _group(
        "Groups of tenants that trust each other and share the cache.",
        create=groups.create,
        list=groups.list_all,
        join=groups.join,
        leave=groups.leave,
        delete=groups.delete,
    )


def _prefixes() -> typer.Typer:
    return _group(
        "Published prefixes: prompts that many tenants begin with.",
        create=prefixes.create,
        list=prefixes.list_all,
        show=prefixes.show,
        delete=prefixes.delete,
    )


def _cache() -> typer.Typer:
    return _group(
        "The prefix cache of a running server.",
        stats=cache.stats,
        evictions=cache.evictions,
        flush=cache.flush,
    )


def _group(help_text: str, **commands: Command) -> typer.Typer:
    group = typer.Typer(
        help=help_text,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_show_locals=False,  # they may hold keys
    )
    _add(group, None, **commands)
    return group


def _add(group: typer.Typer, panel: str | None, **commands: Command) -> None:
    """Add commands to `group`, listed in its help under `panel`."""
    for name, command in commands.items():
        group.command(name.replace("_", "-"), rich_help_panel=panel)(flattened(command))
