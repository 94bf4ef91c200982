"""Progress bars, on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)


class Advance(Protocol):
    """Advances a bar by `count` steps, and renames it if a name is given."""

    def __call__(self, count: int, *, name: str | None = None) -> None: ...  # noqa: D102


@contextmanager
def progress_bar(name: str, total: int) -> Iterator[Advance]:
    """A bar of `total` steps; hidden if standard error is not a terminal."""
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
