"""Every benchmark can be started. Every command on a page or in a help text exists."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli.main import build_app
from cli.options.flags import flattened

ROOT = Path(__file__).parents[2]
LOG = ROOT / "docs" / "lab"  # a log of experiments, with commands that may no longer exist
PAGES = (
    *sorted(ROOT.glob("*.md")),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if LOG not in page.parents),
)


def benchmarks() -> list[str]:
    root = ROOT / "benchmarks"
    files = [path for path in root.rglob("*.py") if "def main(" in path.read_text()]
    return sorted(".".join(path.relative_to(root).with_suffix("").parts) for path in files)


@cache
def app_of(name: str) -> typer.Typer:
    app = typer.Typer(add_completion=False)
    app.command()(flattened(importlib.import_module(f"benchmarks.{name}").main))
    return app


def commands() -> Iterator[tuple[str, str]]:
    """Yield the commands on each page, from inline code and code blocks."""
    for page in PAGES:
        for code in re.findall(r"```\w*\n(.*?)```|`([^`\n]+)`", page.read_text(), re.DOTALL):
            text = "".join(code).replace("\\\n", " ")
            for line in text.splitlines():
                found = re.search(r"(python -m benchmarks\S*|ratoon) [^#|()]*", line.strip() + " ")
                if found is not None and not re.match(r"[\w.]*/", line.strip()):
                    yield page.name, found[0].strip()


def examples() -> Iterator[tuple[str, str]]:
    """Yield the commands in the examples of each command's help."""
    for module in sorted((ROOT / "cli").rglob("*.py")):
        for line in re.findall(r"^ {8}(ratoon [^#|>\n]*)", module.read_text(), re.MULTILINE):
            yield module.name, line.strip()


WRITTEN = {command: page for page, command in (*commands(), *examples())}


def refused(app: typer.Typer, arguments: list[str]) -> str:
    """Return the error for these arguments, or "" if they are valid.

    `--help` is added, so that the command does not run.
    """
    result = CliRunner().invoke(app, [*arguments, "--help"])
    return "" if result.exit_code == 0 else result.output


@pytest.mark.parametrize("name", benchmarks())
def test_a_benchmark_tells_its_options(name: str) -> None:
    assert refused(app_of(name), []) == ""


@pytest.mark.parametrize(("command", "page"), WRITTEN.items())
def test_a_command_on_a_page_can_be_given(page: str, command: str) -> None:
    del page
    program, *words = shlex.split(command)
    if program == "ratoon":
        app, arguments = build_app(words), words
    else:
        module, arguments = words[1], words[2:]
        app = app_of(module.partition(".")[2] or "everything")
    assert refused(app, arguments) == ""


def test_an_option_that_is_not_there_is_seen() -> None:
    """Refuse an unknown option (positive control)."""
    assert "No such option" in refused(app_of("engine.tree"), ["--num-token", "5"])
    assert "No such option" in refused(build_app(["serve"]), ["serve", "--prot", "8000"])


def test_pages_name_commands() -> None:
    """Find commands on pages (positive control)."""
    assert len(WRITTEN) > 80
    assert len({*examples()}) > 40
    assert any(command.startswith("ratoon tenants") for command in WRITTEN)
    assert any(command.startswith("python -m benchmarks.flood") for command in WRITTEN)
