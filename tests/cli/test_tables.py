"""Tables fit a terminal of any width without cut words. In a pipe, each row is one line of cells
between tabs.
"""

import re
from io import StringIO

import pytest
from rich.console import Console

from cli.output import moment, print_table
from cli.tables import TableText, fitting

ID = "key_0123456789abcdef"
TABLE = TableText.of(
    "Keys",
    ("tenant\nkey", "what it is", "count"),
    [(f"acme\n{ID}", "a key that [bold]some[/bold] people use", 3), ("globex\nkey_2", "-", 12)],
)


def written(width: int, table: TableText = TABLE, *, terminal: bool = True) -> str:
    out = StringIO()
    console = Console(
        file=out, force_terminal=terminal, width=width, color_system=None, _environ={"TERM": "x"}
    )
    table.write(console)
    return out.getvalue()


@pytest.mark.parametrize("width", range(1, 100, 7))
def test_no_word_is_cut_at_any_width(width: int) -> None:
    words = written(width).split()
    for word in (ID, "acme", "key_2", "[bold]some[/bold]", "people", "count"):
        assert word in words


@pytest.mark.parametrize("width", [48, 60, 79])
def test_where_its_words_fit_a_table_fits(width: int) -> None:
    lines = written(width).splitlines()
    assert max(map(len, lines)) <= width
    assert any(ID in line for line in lines)
    wrapped = not any("a key" in line and "people" in line for line in lines)
    assert wrapped is (width < 70)


def test_a_table_that_is_too_wide_is_written_as_records() -> None:
    lines = written(30).splitlines()
    assert f"  key         {ID}" in lines
    assert "  count       12" in lines


def test_a_pipe_gets_a_line_for_a_row_with_tabs_between_cells() -> None:
    assert written(10, terminal=False).splitlines() == [
        "# Keys",
        "tenant\tkey\twhat it is\tcount",
        f"acme\t{ID}\ta key that [bold]some[/bold] people use\t3",
        "globex\tkey_2\t-\t12",
    ]


def test_a_cell_has_no_line_or_tab_of_its_own_in_a_pipe() -> None:
    table = TableText.of("", ("a", "b\nc"), [("x\ty\nz", "1"), ("", "2\n3\n4")])
    assert written(80, table, terminal=False).splitlines()[2:] == ["x y z\t1\t", "\t2\t3 4"]


def test_a_table_without_heads_has_no_line_for_them() -> None:
    table = TableText.of("Engine", ("", ""), [("steps", 3)])
    assert written(80, table, terminal=False) == "# Engine\nsteps\t3\n"


def test_a_table_without_rows_still_says_what_it_is() -> None:
    for width in (10, 80):
        assert "Keys" in written(width, TableText.of("Keys", ("id", "state"), []))


def test_a_pipe_is_plain_although_colours_are_forced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR")
    print_table("Keys", ("id",), [(ID,)])
    printed = capsys.readouterr().out
    assert printed == f"# Keys\nid\n{ID}\n"
    assert re.search("[^\x20-\x7e\n]", printed) is None


@pytest.mark.parametrize(
    ("extents", "width", "widths"),
    [
        ([(3, 5), (4, 10)], 18, [5, 10]),
        ([(3, 5), (4, 10)], 14, [5, 6]),
        ([(3, 5), (4, 10)], 10, [3, 4]),
        ([(3, 5), (4, 10)], 9, None),
        ([], 5, []),
    ],
)
def test_columns_give_what_they_have_most_of(
    extents: list[tuple[int, int]], width: int, widths: list[int] | None
) -> None:
    assert fitting(extents, width) == widths


@pytest.mark.parametrize(
    ("seconds", "written_as"),
    [
        (None, ""),
        (0.0, "1970-01-01 00:00:00Z"),
        (253_402_300_799.0, "9999-12-31 23:59:59Z"),
        (253_402_300_800.0, "after 9999"),
        (1e300, "after 9999"),
    ],
)
def test_every_moment_is_written(seconds: float | None, written_as: str) -> None:
    assert moment(seconds) == written_as
