"""docs/reference agrees with the code: every flag, route and metric."""

from __future__ import annotations

import re

import pytest

from docs.generate.metrics import exposition
from docs.generate.options import commands, options_of
from docs.generate.pages import MARK, REFERENCE, pages
from docs.generate.routes import description

PAGES = sorted(page.name for page in REFERENCE.glob("*.md") if MARK in page.read_text())


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages()


def on(page: str) -> str:
    return (REFERENCE / page).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_current(page: str, made: dict[str, str]) -> None:
    """`make docs` writes the part of a page below its mark, and leaves the text above unchanged."""
    assert on(page) == made[page]


def test_every_page_that_is_made_is_there(made: dict[str, str]) -> None:
    assert sorted(made) == PAGES


def test_every_flag_is_on_the_page_of_the_command_line() -> None:
    """A flag is listed in its command's section, or in the section of common options."""
    sections = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", on("cli.md"), re.MULTILINE))
    found = [option for _, command in commands() for option in options_of(command)]
    assert len(found) > 150
    for name, command in commands():
        text = sections[name]
        text += "".join(sections[shared] for shared in re.findall(r"^\[(\w+' options)", text, re.M))
        if "(configuration.md)" in text:
            text += on("configuration.md")
        assert [o.opts[0] for o in options_of(command) if f"`{o.opts[0]}" not in text] == []


def test_every_setting_of_a_server_has_its_variable_and_its_help() -> None:
    settings = dict(re.findall(r"^- `([^`]+)`(?: \(.*?\))?: (.*)$", on("configuration.md"), re.M))
    for option in options_of(dict(commands())["ratoon serve"]):
        variables = [option.envvar] if isinstance(option.envvar, str) else option.envvar
        assert variables[0] == "RATOON_" + option.opts[0][2:].replace("-", "_").upper()
        assert len(settings["/".join([option.opts[0], *option.secondary_opts])]) > 10


def test_every_route_is_on_a_page() -> None:
    rows = set(
        re.findall(r"^\| `(\w+ /\S*)` ", on("http-api.md") + on("admin-api.md"), re.MULTILINE)
    )
    routes = {
        f"{method.upper()} {path}"
        for path, methods in description()["paths"].items()
        for method in methods
    }
    assert len(routes) > 30
    assert routes <= rows


def test_every_metric_is_on_the_page() -> None:
    names = re.findall(
        r"^# TYPE (ratoon_\w+) (?:counter|gauge|histogram)", exposition(), re.MULTILINE
    )
    real = [name for name in names if not name.endswith("_created")]
    assert len(real) > 40
    assert [name for name in real if f"| `{name}` |" not in on("metrics.md")] == []


def test_control_a_flag_that_is_gone_is_noticed(made: dict[str, str]) -> None:
    """Positive control: whole pages are compared, so that one changed word is found."""
    assert made["configuration.md"].replace("--otlp-endpoint", "--x") != on("configuration.md")
