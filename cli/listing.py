"""The help of what only lists commands: plain lines, by panel.

Panels with borders take as long to import as all that such a help needs besides. The help of a
command, which is read rather than skimmed, has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from cli.commands import summary_of

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter


class ListedCommand(TyperCommand):
    """A command that is not imported."""

    def __init__(self, *arguments: Any, help: str, **settings: Any) -> None:  # noqa: A002 - typer's
        """Take a command whose function is at `help`, module:function."""
        super().__init__(*arguments, help=None, **settings)
        self._function = help

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return its summary, which only a list needs."""
        self.help = summary_of(self._function)
        return super().get_short_help_str(limit)


class CommandList(TyperGroup):
    """Commands below one word, or all; listed under the panels they were given."""

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Print what `formatter` gets, and empty it: typer shows no more without words."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)
        typer.echo(formatter.getvalue(), nl=False)
        formatter.buffer.clear()

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write a section for each panel, in the order in which commands were added."""
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        panels = {_panel(command): None for _, command in commands}
        for panel in panels:
            lines = [
                (name, command.get_short_help_str(limit=1000))
                for name, command in commands
                if _panel(command) == panel
            ]
            with formatter.section(typer.style(panel, bold=True)):
                formatter.write_dl(lines)


def _panel(command: Command) -> str:
    return getattr(command, "rich_help_panel", None) or "Commands"
