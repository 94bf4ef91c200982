"""The `ratoon` command: which sub-commands there are.

Each is named as `module:function` and imported only when it is asked for. The libraries of all
commands together take more than a second to load, and `ratoon serve` is to start its engine at
once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as distribution_version
from pkgutil import resolve_name

import typer

from cli.options.flags import flattened


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """Commands that begin with the same word."""

    help_text: str
    commands: Commands


Commands = Mapping[str, str | CommandGroup]

KEYS = CommandGroup(
    "A tenant's keys. An issued key is shown once.",
    {
        "create": "cli.operating.tenant_keys:create",
        "list": "cli.operating.tenant_keys:list_all",
        "rotate": "cli.operating.tenant_keys:rotate",
        "revoke": "cli.operating.tenant_keys:revoke",
    },
)
TENANTS = CommandGroup(
    "Tenants of a running server, their keys, limits and cache quotas.",
    {
        "create": "cli.operating.tenants:create",
        "list": "cli.operating.tenants:list_all",
        "show": "cli.operating.tenant_view:show",
        "limits": "cli.operating.tenants:limits",
        "quota": "cli.operating.tenants:quota",
        "usage-tiers": "cli.operating.tenants:usage_tiers",
        "canonical-prompts": "cli.operating.tenants:canonical_prompts",
        "disable": "cli.operating.tenants:disable",
        "enable": "cli.operating.tenants:enable",
        "delete": "cli.operating.tenants:delete",
        "keys": KEYS,
    },
)
GROUPS = CommandGroup(
    "Groups of tenants that trust each other and share the cache.",
    {
        "create": "cli.operating.groups:create",
        "list": "cli.operating.groups:list_all",
        "join": "cli.operating.groups:join",
        "leave": "cli.operating.groups:leave",
        "delete": "cli.operating.groups:delete",
    },
)
PREFIXES = CommandGroup(
    "Published prefixes: prompts that many tenants begin with.",
    {
        "create": "cli.operating.prefixes:create",
        "list": "cli.operating.prefixes:list_all",
        "show": "cli.operating.prefixes:show",
        "delete": "cli.operating.prefixes:delete",
    },
)
CACHE = CommandGroup(
    "The prefix cache of a running server.",
    {
        "stats": "cli.operating.cache:stats",
        "evictions": "cli.operating.cache:evictions",
        "flush": "cli.operating.cache:flush",
    },
)
# By the panel of the help in which they are listed.
COMMANDS: Mapping[str, Commands] = {
    "Serve": {
        "serve": "cli.serving.serve:serve",
        "gateway": "cli.serving.serve:gateway",
        "engine": "cli.serving.serve:engine",
    },
    "Operate": {
        "usage": "cli.operating.usage:usage",
        "audit": "cli.operating.usage:audit",
        "verify-isolation": "cli.isolation.verify_isolation:verify_isolation",
        "tenants": TENANTS,
        "groups": GROUPS,
        "prefixes": PREFIXES,
        "cache": CACHE,
    },
    "Measure": {
        "bench": "cli.load.bench:bench",
        "simulate": "cli.simulation.simulate:simulate",
        "plan": "cli.simulation.plan:plan",
        "lint": "cli.lint.lint:lint",
        "version": "cli.main:version",
    },
}


def main() -> None:
    """Entry point of the `ratoon` script."""
    build_app(sys.argv[1:])()


def version() -> None:
    """Print the version.

    Example:

        ratoon version
    """
    typer.echo(f"ratoon {distribution_version('ratoon')}")


def build_app(words: Sequence[str] = ()) -> typer.Typer:
    """The command line that understands `words`.

    If they begin with a command, it has no other. If not, it has all: they are to be listed, to be
    completed, or to be compared with a word that is misspelt.
    """
    app = _typer(
        "A multi-tenant inference gateway that treats the prompt cache as its product.\n\n"
        "'ratoon serve' starts everything on one machine; the other commands talk to it. Every "
        "flag can be given as a variable, named in [yellow]\\[env var][/yellow] beside it."
    )
    app.callback()(_before_any_command)
    for panel, commands in _asked_for(words).items():
        _add(app, commands, panel)
    return app


def _asked_for(words: Sequence[str]) -> Mapping[str, Commands]:
    """The command that `words` begin with, in its panel; all, if they begin with none."""
    for panel, commands in COMMANDS.items():
        if words and words[0] in commands:
            return {panel: {words[0]: commands[words[0]]}}
    return COMMANDS


def _add(app: typer.Typer, commands: Commands, panel: str | None = None) -> None:
    """Add commands to `app`, listed in its help under `panel`."""
    for name, command in commands.items():
        if isinstance(command, CommandGroup):
            group = _typer(command.help_text)
            _add(group, command.commands)
            app.add_typer(group, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(flattened(resolve_name(command)))


def _typer(help_text: str) -> typer.Typer:
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_show_locals=False,  # they may hold keys
    )


def _before_any_command() -> None:
    """Nothing. An app without a callback would take its only command for itself: no `ratoon X`."""
