"""Help pages show every name, option and example uncut, 80 columns wide and narrower."""

from __future__ import annotations

import re

import pytest
import typer

from cli.help_page import paragraphs
from cli.main import build_app
from tests.cli.console import Console

COMMANDS = ["serve", "gateway", "engine", "bench", "verify-isolation", "tenants limits", "plan"]


def options_of(words: str) -> list[str]:
    """Return every flag and variable of the command's options, as the parser has them."""
    command = typer.main.get_command(build_app(words.split()))
    for word in words.split():
        command = command.commands[word]  # type: ignore[attr-defined]
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    names = [name for one in shown for name in (*one.opts, *one.secondary_opts)]
    variables = [
        name
        for one in shown
        for name in ([one.envvar] if isinstance(one.envvar, str) else one.envvar or [])
    ]
    return [name for name in names + variables if name.startswith(("--", "RATOON_"))]


@pytest.mark.parametrize("columns", ["80", "60"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_name_is_cut(
    command: str, columns: str, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    printed = console.type(*command.split(), "--help")
    words = set(re.split(r"[\s,;/\[\]]+", printed.out))
    expected = options_of(command)
    assert len(expected) > 5
    assert [name for name in expected if name not in words] == []
    assert "…" not in printed.out
    examples = [line for line in printed.out.splitlines() if line.startswith("    ratoon ")]
    others = [line for line in printed.out.splitlines() if line not in examples]
    assert examples
    assert max(map(len, others)) <= int(columns)


def test_panels_have_their_options(console: Console) -> None:
    printed = console.type("serve", "--help").out
    model, gateway = printed.index("\nModel\n"), printed.index("\nGateway\n")
    assert model < printed.index("--data-dir <path>") < gateway < printed.index("--admin-host <")


def test_what_must_be_given_is_said(console: Console) -> None:
    printed = console.type("tenants", "limits", "--help").out
    assert "  TENANT <str>\n      The tenant's name or id.  [required]" in printed


def test_paragraphs_are_lines_and_examples_stay() -> None:
    text = """One
    two.

    Example:

        ratoon x
    """
    assert list(paragraphs(text)) == ["One two.", "Example:", "    ratoon x"]


@pytest.mark.parametrize(("command", "hint"), [("plan", "--model ./mine"), ("status", None)])
def test_an_argument_that_has_no_place_is_refused(
    command: str, hint: str | None, console: Console
) -> None:
    printed = console.type(command, "./mine")
    said = " ".join(printed.err.replace("│", " ").split())
    assert printed.status == 2
    assert "unexpected extra argument(s) (./mine)" in said
    assert ("a model is named by a flag" in said) == (hint is not None)
    assert hint is None or hint in said
