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


@pytest.mark.parametrize(("steps", "shown"), [(9, "9/20"), (11, "11/20")])
def test_what_was_done_since_it_was_last_moved_is_there_at_the_end(
    terminal: None, capsys: pytest.CaptureFixture[str], steps: int, shown: str
) -> None:
    with progress_bar("blocks", 20, at_once=10) as advance:
        for _ in range(steps):
            advance(1)
    assert shown in capsys.readouterr().err
