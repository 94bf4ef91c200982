"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table with a heading for each column."""
    lines = [columns, ["--"] * len(columns), *rows]
    cells = ([cell.replace("|", "\\|").replace("<", "&lt;") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
