"""Tables for people at a terminal, and plain lines for programs that read a pipe.

At a terminal no word is ever cut, so that ids can be copied. Cells wrap between words. A table
whose words do not fit the terminal's width is written as records, with a line for each field. In a
pipe each row is one line with tabs between cells, without borders and colours.

A cell or a column's head may have several parts, one above the other. In a pipe these parts stand
side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.telemetry.harmless import harmless

_GAP = 3  # number of columns between two cells

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableText:
    """A titled table of text. Every row has a cell for each column head."""

    title: str
    heads: Row
    rows: tuple[Row, ...]
    is_alarm: bool = False  # whether the table is red at a terminal

    @classmethod
    def of(
        cls,
        title: str,
        heads: Sequence[str],
        rows: Iterable[Iterable[object]],
        *,
        is_alarm: bool = False,
    ) -> TableText:
        """Build a table from cells of any type, converted by `str` and made harmless."""
        shown = tuple(tuple(harmless(str(cell)) for cell in row) for row in rows)
        return cls(harmless(title), tuple(heads), shown, is_alarm)

    def write(self, console: Console) -> None:
        """Write the table to the console, as a table or as plain lines."""
        if not console.is_terminal:
            _write(console, self.plain_lines())
        elif (table := self.drawn(console.width)) is not None:
            console.print(table)
        else:
            _write(console, self.record_lines())

    def drawn(self, width: int) -> Table | None:
        """Draw the table for a terminal of this width, if its words fit."""
        widths = fitting(self._extents(), width)
        return None if widths is None else self._drawn(widths)

    def plain_lines(self) -> Iterator[str]:
        """Yield the title as a comment, the heads and the rows, with tabs between cells."""
        yield f"# {self.title}"
        for row in (self.heads, *self.rows) if any(self.heads) else self.rows:
            yield "\t".join(self._parts(row))

    def record_lines(self) -> Iterator[str]:
        """Yield the title, then a line for each field of each row."""
        yield self.title
        names = self._parts(self.heads)
        width = max(map(cell_len, names), default=0)
        for row in self.rows:
            yield ""
            for name, value in zip(names, self._parts(row), strict=True):
                yield f"  {name:<{width}}  {value}".rstrip()

    def _parts(self, row: Row) -> list[str]:
        """Split a row's cells into their stacked parts, each without tabs or line breaks."""
        parts: list[str] = []
        for head, cell in zip(self.heads, row, strict=True):
            wanted = head.count("\n") + 1
            found = cell.split("\n", wanted - 1)
            parts += (" ".join(part.split()) for part in [*found, *[""] * (wanted - len(found))])
        return parts

    def _extents(self) -> list[tuple[int, int]]:
        return [
            (
                max(cell_len(word) for cell in cells for word in (*cell.split(), "")),
                max(cell_len(line) for cell in cells for line in cell.split("\n")),
            )
            for cells in zip(self.heads, *self.rows, strict=True)
        ]

    def _drawn(self, widths: Sequence[int]) -> Table:
        table = Table(
            title=Text(self.title),
            title_justify="left",
            box=SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            style="bold red" if self.is_alarm else "none",
        )
        for head, width in zip(self.heads, widths, strict=True):
            table.add_column(Text(head), width=width)
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


def _write(console: Console, lines: Iterable[str]) -> None:
    """Write lines unchanged, because rich would expand tabs."""
    for line in lines:
        console.file.write(f"{line}\n")


def fitting(extents: Sequence[tuple[int, int]], width: int) -> list[int] | None:
    """Fit the columns' widths to `width`, if the longest words fit.

    `extents` has the narrowest and the natural width of each column. Columns are narrowed character
    by character, always the column that can lose most.
    """
    widths = [natural for _, natural in extents]
    excess = sum(widths) + _GAP * (len(widths) - 1) - width
    for _ in range(excess):
        slack = [now - narrowest for now, (narrowest, _) in zip(widths, extents, strict=True)]
        if max(slack, default=0) <= 0:
            return None
        widths[slack.index(max(slack))] -= 1
    return widths
