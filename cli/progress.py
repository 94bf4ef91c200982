"""Progress bars, on standard error."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cli.echo import echo

_EVERY_S = 5.0


class Advance(Protocol):
    """A function that advances a bar by `count` steps, and may rename it."""

    def __call__(self, count: int, *, name: str | None = None) -> None: ...


@contextmanager
def progress_lines(name: str, total: int) -> Iterator[Advance]:
    """Show a bar of `total` steps. If there is no terminal, print a line every few seconds."""
    with progress_bar(name, total) as advance:
        told, done = time.monotonic(), 0
        is_terminal = Console(stderr=True).is_terminal

        def advance_and_tell(count: int, *, name: str | None = None) -> None:
            nonlocal told, done
            advance(count, name=name)
            done += count
            if time.monotonic() - told >= _EVERY_S and not is_terminal:
                told = time.monotonic()
                tell()

        def tell() -> None:
            echo(f"{name}: {done} of {total}", err=True)

        yield advance_and_tell
        if not is_terminal:
            tell()


@contextmanager
def progress_bar(name: str, total: int) -> Iterator[Advance]:
    """Show a bar of `total` steps, hidden if standard error is not a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=total)

        def advance(count: int, *, name: str | None = None) -> None:
            progress.update(task, advance=count, description=name)

        yield advance
