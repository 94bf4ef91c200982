import pytest
from rich.console import Console

from cli.progress import progress_bar, progress_lines


def test_it_is_silent_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("blocks", 2) as advance:
        advance(1)
        advance(1, name="blocks (of the last)")
    assert capsys.readouterr().err.strip() == ""


def test_lines_say_how_far_it_is_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.progress._EVERY_S", 0.0)
    with progress_lines("cells", 2) as advance:
        advance(1)
        assert capsys.readouterr().err.strip() == "cells: 1 of 2"
        advance(1)
    assert capsys.readouterr().err.splitlines()[-1] == "cells: 2 of 2"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rich treat standard error as a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert Console(stderr=True).is_terminal, "what rich takes for a terminal has changed"


def test_a_terminal_sees_how_far_it_is(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("blocks", 7) as advance:
        advance(3)
        advance(2, name="the last blocks")
    shown = capsys.readouterr().err
    assert "the last blocks" in shown
    assert "5/7" in shown
