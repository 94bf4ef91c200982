"""The `ratoon` command: which sub-commands there are.

Each is named as `module:function` and imported only when it is asked for. The libraries of all
commands together take more than a second to load, and `ratoon serve` is to start its engine at
once.

Knows: names. Does not know: what the commands do, nor their flags.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name

import typer

from cli.flags import flattened


@dataclass(frozen=True, slots=True)
class Group:
    """Commands that begin with the same word."""

    help_text: str
    commands: Commands


Commands = Mapping[str, str | Group]

KEYS = Group(
    "A tenant's keys. An issued key is shown once.",
    {
        "create": "cli.tenant_keys:create",
        "list": "cli.tenant_keys:list_all",
        "rotate": "cli.tenant_keys:rotate",
        "revoke": "cli.tenant_keys:revoke",
    },
)
TENANTS = Group(
    "Tenants of a running server, their keys, limits and cache quotas.",
    {
        "create": "cli.tenants:create",
        "list": "cli.tenants:list_all",
        "limits": "cli.tenant_limits:limits",
        "quota": "cli.tenant_quota:quota",
        "disable": "cli.tenants:disable",
        "enable": "cli.tenants:enable",
        "delete": "cli.tenants:delete",
        "keys": KEYS,
    },
)
GROUPS = Group(
    "Groups of tenants that trust each other and share the cache.",
    {
        "create": "cli.groups:create",
        "list": "cli.groups:list_all",
        "join": "cli.groups:join",
        "leave": "cli.groups:leave",
        "delete": "cli.groups:delete",
    },
)
PREFIXES = Group(
    "Published prefixes: prompts that many tenants begin with.",
    {
        "create": "cli.prefixes:create",
        "list": "cli.prefixes:list_all",
        "show": "cli.prefixes:show",
        "delete": "cli.prefixes:delete",
    },
)
CACHE = Group(
    "The prefix cache of a running server.",
    {
        "stats": "cli.cache:stats",
        "evictions": "cli.cache:evictions",
        "flush": "cli.cache:flush",
    },
)
# By the panel of the help in which they are listed.
COMMANDS: Mapping[str, Commands] = {
    "Serve": {
        "serve": "cli.serve:serve",
        "gateway": "cli.standalone:gateway",
        "engine": "cli.standalone:engine",
    },
    "Operate": {
        "usage": "cli.ledger:usage",
        "audit": "cli.ledger:audit",
        "verify-isolation": "cli.verify_isolation:verify_isolation",
        "tenants": TENANTS,
        "groups": GROUPS,
        "prefixes": PREFIXES,
        "cache": CACHE,
    },
    "Measure": {
        "bench": "cli.bench:bench",
        "simulate": "cli.simulate:simulate",
        "plan": "cli.plan:plan",
        "version": "cli.version:version",
    },
}


def main() -> None:
    """Entry point of the `ratoon` script."""
    build_app(sys.argv[1:])()


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
        if isinstance(command, Group):
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
