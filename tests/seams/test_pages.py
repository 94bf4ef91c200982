"""What the pages name is there: tests on the page of faults, links on every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
TESTS = {path: path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py"))}


def named(page: Path) -> list[tuple[str, list[str]]]:
    """Modules of tests, each with the class and the test named in it."""
    codes = re.findall(r"`([\w/]*\btest_[\w:]+)(?:\.\.\.)?`", page.read_text())
    return [(module, names) for module, *names in (code.split("::") for code in codes)]


def modules_of(name: str) -> list[Path]:
    return [path for path in TESTS if str(path).endswith(f"/{name}.py")]


def has(modules: list[Path], name: str) -> bool:
    return any(re.search(rf"(def|class) {name}", TESTS[path]) for path in modules)


def test_every_test_on_the_page_of_faults_is_there() -> None:
    found = named(ROOT / "docs" / "faults.md")
    assert len(found) > 60
    for module, names in found:
        if modules_of(module):
            assert all(has(modules_of(module), name) for name in names), (module, names)
        else:  # a test alone, of a module named before it
            assert has(list(TESTS), module), module


def test_control_a_test_that_does_not_exist_is_noticed() -> None:
    """The control."""
    assert modules_of("engine/test_core")
    assert not modules_of("engine/test_cores")
    assert not has(modules_of("engine/test_core"), "test_nothing_of_this_name")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    inside = [link for link in links if not link.startswith("http")]
    assert [link for link in inside if not (page.parent / link).exists()] == []
