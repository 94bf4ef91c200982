from io import StringIO

import pytest
from rich.console import Console

from cli.screen import PlainScreen, TerminalScreen, open_screen


def test_a_pipe_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    screen = open_screen("loading tiny", "hello")
    assert isinstance(screen, PlainScreen)
    screen.child_says("engine", "[bold]not markup[/bold]")
    screen.say("the engine is back")
    screen.announce()
    screen.close()
    printed = capsys.readouterr()
    assert printed.out == "hello\n"
    assert printed.err == (
        "ratoon: loading tiny\nengine| [bold]not markup[/bold]\nratoon: the engine is back\n"
    )


def test_a_terminal_gets_the_same_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=30, color_system=None)
    screen = TerminalScreen("loading tiny", "hello " * 20, console)
    screen.child_says("engine", "[bold]not markup[/bold] " + "x" * 40)
    screen.say("the engine is back")
    screen.announce()
    screen.close()
    said = out.getvalue()
    assert "loading tiny" in said
    assert "engine| [bold]not markup[/bold] " + "x" * 40 in said, "wrapped or read as markup"
    assert "ratoon: the engine is back" in said
    assert capsys.readouterr().out == "hello " * 20 + "\n", "what is copied is not wrapped"
