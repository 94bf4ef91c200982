"""How commands print results: tables, JSON, and single values that can be piped.

Knows: rich and standard output. Does not know: what is shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table


def print_json(value: Any) -> None:
    """`value` on standard output, indented."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_answer(answer: Any, words: str, *, as_json: bool) -> None:
    """The server's answer to a change: as JSON, or as a sentence."""
    if as_json:
        print_json(answer)
    else:
        typer.echo(words)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on standard output; every row has a cell for each column."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table, markup=False)


def utc_now() -> str:
    """The date and time in UTC, as `moment` writes them."""
    return moment(time.time())


def moment(seconds: float | None) -> str:
    """Seconds since the epoch as a date and time in UTC; empty for None."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
