"""The output of commands: tables, JSON, and single values for pipes."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from rich.console import Console

from cli.echo import echo
from cli.tables import TableText

_YEAR_10000 = 253_402_300_800.0  # seconds since the epoch

Shown = TypeVar("Shown")


def print_json(value: Any) -> None:
    """Print `value` as indented JSON."""
    echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_result(value: Shown, show: Callable[[Shown], None], *, as_json: bool) -> None:
    """Print `value` as JSON, or in readable form by `show`."""
    if as_json:
        print_json(value)
    else:
        show(value)


def print_answer(answer: Any, words: str, *, as_json: bool) -> None:
    """Print the server's answer to a change, as JSON or as a sentence."""
    print_result(answer, lambda _: echo(words), as_json=as_json)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table. Every row has a cell for each column."""
    # Plain text in a pipe, even if FORCE_COLOR is set, which makes rich assume a terminal.
    console = Console(force_terminal=sys.stdout.isatty())
    TableText.of(title, columns, rows).write(console)


def print_rows(
    title: str,
    columns: Sequence[str],
    rows: Sequence[dict[str, Any]],
    as_cells: Callable[[dict[str, Any]], Iterable[object]],
    *,
    as_json: bool,
) -> None:
    """Print a list from the server, as JSON or as a table. `as_cells` makes a table row."""
    print_result(
        rows, lambda rows: print_table(title, columns, map(as_cells, rows)), as_json=as_json
    )


def utc_now() -> str:
    """Return the present date and time in UTC, in the format of `moment`."""
    return moment(time.time())


def moment(seconds: float | None) -> str:
    """Write seconds since the epoch as a date and time in UTC, or None as "".

    A rotated key may end after the year 9999. Such a time has no date.
    """
    if seconds is None:
        return ""
    if seconds >= _YEAR_10000:
        return "after 9999"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
