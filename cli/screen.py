"""The output of `ratoon serve`: for a terminal, or for a log.

Knows: rich, and how plain lines are written. Does not know: when what is printed (`watch`).
"""

from __future__ import annotations

import typer
from rich.console import Console
from rich.text import Text

from cli.supervisor import ChildName


class PlainScreen:
    """Lines, for a pipe or a file: the greeting on stdout, everything else on stderr."""

    def __init__(self, loading: str, greeting: str) -> None:
        self._greeting = greeting
        self.say(loading)

    def say(self, text: str) -> None:
        """A line of our own."""
        typer.echo(f"ratoon: {text}", err=True)

    def child_says(self, name: ChildName, line: str) -> None:
        """A child's line, marked with whose it is."""
        typer.echo(f"{name}| {line}", err=True)

    def announce(self) -> None:
        """The greeting, once the server is ready."""
        typer.echo(self._greeting)

    def close(self) -> None:
        """Nothing is held."""


class TerminalScreen:
    """A terminal: a spinner while the model loads, lines above it."""

    def __init__(self, loading: str, greeting: str, console: Console) -> None:
        self._greeting = greeting
        self._console = console
        self._status = console.status(loading)
        self._status.start()

    def say(self, text: str) -> None:
        """A line of our own, told apart from the children's."""
        self._console.print(Text(f"ratoon: {text}", style="bold"))

    def child_says(self, name: ChildName, line: str) -> None:
        """A child's line, marked with whose it is and dimmed."""
        self._console.print(Text(f"{name}| {line}", style="dim"), soft_wrap=True)

    def announce(self) -> None:
        """The greeting in place of the spinner; unwrapped, so that it can be copied."""
        self._status.stop()
        typer.echo(self._greeting)

    def close(self) -> None:
        """Give the terminal back."""
        self._status.stop()


def open_screen(loading: str, greeting: str) -> PlainScreen | TerminalScreen:
    """A `TerminalScreen` if standard error is a terminal, else a `PlainScreen`."""
    console = Console(stderr=True)
    if console.is_terminal:
        return TerminalScreen(loading, greeting, console)
    return PlainScreen(loading, greeting)
