import pytest
from rich.console import Console

from cli.progress import progress_bar


def test_it_is_silent_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("blocks", 2) as advance:
        advance(1)
        advance(1, name="blocks (of the last)")
    assert capsys.readouterr().err.strip() == ""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rich takes for one."""
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
