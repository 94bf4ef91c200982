"""How far a run is, on standard error.

Knows: rich. Does not know: what is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress
from rich.console import Console


class Progress:
    """One bar after another; nothing where standard error is no terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)

    @contextmanager
    def counting(self, name: str, total: int) -> Iterator[Callable[[], None]]:
        """A bar of `total` steps; call what is given at each."""
        columns = (
            progress.TextColumn("{task.description:>24}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
        )
        hidden = not self._console.is_terminal
        with progress.Progress(*columns, console=self._console, disable=hidden) as bar:
            task = bar.add_task(name, total=total)
            yield lambda: bar.advance(task)
