"""The `ratoon` command line.

A command's module is imported only if the command is called. The libraries of all commands take
more than a second to load, and `ratoon serve` must start its engine without delay. The help imports
no command.
"""

import os
import sys
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Annotated

import typer

from cli.commands import COMMANDS, CommandGroup, Commands
from cli.echo import echo
from cli.help_page import HelpPage
from cli.listing import CommandList, ListedCommand
from cli.options.flags import flattened
from engine.system.core_dumps import prevent_core_dumps


def main() -> None:
    """Run the `ratoon` script without core dumps, since commands may hold keys or prompts."""
    prevent_core_dumps()
    build_app(_words())()


def _words() -> list[str]:
    if "_RATOON_COMPLETE" not in os.environ:
        return sys.argv[1:]
    typed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    return typed.split()[1:]


def version() -> None:
    """Print the version.

    Example:

        ratoon version
    """
    from importlib.metadata import version as distribution_version

    echo(f"ratoon {distribution_version('ratoon')}")


def build_app(words: Sequence[str] | None = None) -> typer.Typer:
    """Build the command line for `words`, or with every command if `words` is None.

    If `words` begin with a command, the command line has only this command. Otherwise it has all
    commands but imports none. Commands are then only listed, completed, or compared with a misspelt
    word.
    """
    app = _typer(
        "A multi-tenant inference gateway that treats the prompt cache as its product.\n\n"
        "'ratoon serve' starts everything on one machine; the other commands talk to it. Every "
        "flag can be given as a variable, named in [env var] beside it."
    )
    app.callback()(_before_any_command)
    if words and words[0] == "--":
        words = words[1:]
    asked = _begun({name: one for panel in COMMANDS.values() for name, one in panel.items()}, words)
    for panel, commands in COMMANDS.items():
        _add(app, {name: asked[name] for name in commands if name in asked}, words, panel)
    return app


def _begun(commands: Commands, words: Sequence[str] | None) -> Commands:
    return {words[0]: commands[words[0]]} if words and words[0] in commands else commands


def _add(
    app: typer.Typer, commands: Commands, words: Sequence[str] | None, panel: str | None = None
) -> None:
    for name, command in commands.items():
        below = _after(name, words)
        if isinstance(command, CommandGroup):
            group = _typer(command.help_text)
            _add(group, _begun(command.commands, below), below, panel=None)
            app.add_typer(group, name=name, rich_help_panel=panel)
        elif below is None or (words and words[0] == name):
            run = flattened(resolve_name(command))
            app.command(name, cls=HelpPage, rich_help_panel=panel)(run)
        else:
            app.command(name, cls=ListedCommand, rich_help_panel=panel, help=command)(_only_listed)


def _after(name: str, words: Sequence[str] | None) -> Sequence[str] | None:
    """Return the words after the command `name`, or no words if they name another command.

    Returns None if `words` is None.
    """
    if words is None:
        return None
    return words[1:] if words and words[0] == name else ()


def _only_listed() -> None:
    """Stand in for a command that is only listed, and so never run."""


def _typer(help_text: str) -> typer.Typer:
    return typer.Typer(
        cls=CommandList,
        help=help_text,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_show_locals=False,  # local variables may hold keys
    )


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


def _before_any_command(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Handle the options before a command."""
