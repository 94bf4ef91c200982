"""How far a run is, on standard error.

Knows: rich. Does not know: what is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Advance(Protocol):
    """Tells a bar that so many more are done, and what it is to be called from now on."""

    def __call__(self, count: int, *, name: str | None = None) -> None: ...  # noqa: D102


@contextmanager
def progress_bar(name: str, total: int, *, at_once: int = 1) -> Iterator[Advance]:
    """A bar of `total` steps; nothing where standard error is no terminal.

    It is moved when `at_once` steps are done: moving it takes longer than a small step does.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=total)
        untold = 0

        def advance(count: int, *, name: str | None = None) -> None:
            nonlocal untold
            untold += count
            if untold >= at_once:
                progress.update(task, advance=untold, description=name)
                untold = 0

        yield advance
        progress.update(task, advance=untold)
