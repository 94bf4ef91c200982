"""The help of command groups: plain lines, one for each command, by panel.

The library that draws panels with borders would double the time that this help takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from cli.commands import summary_of

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter


class ListedCommand(TyperCommand):
    """A command whose module is not imported yet."""

    def __init__(self, *arguments: Any, help: str, **settings: Any) -> None:  # noqa: A002 - typer's
        """Create a command for the function that `help` names as module:function."""
        super().__init__(*arguments, help=None, **settings)
        self._function = help

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the command's summary, which only a list of commands needs."""
        self.help = summary_of(self._function)
        return super().get_short_help_str(limit)


class CommandList(TyperGroup):
    """Commands that share their first word, or all commands, listed by panel."""

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Print the content of `formatter`, and clear it, so that typer prints nothing else."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)
        typer.echo(formatter.getvalue(), nl=False)
        formatter.buffer.clear()

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write a section for each panel, in the order in which its commands were added."""
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
