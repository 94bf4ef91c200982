"""Named things exist: tests on the page of faults, links on all pages, files in docstrings."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
TESTS = {path: path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py"))}


def named(page: Path) -> list[tuple[str, list[str]]]:
    """Return the named test modules, each with the class and the test."""
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
        else:  # the name of a test; the page named its module earlier
            assert has(list(TESTS), module), module


def test_control_a_test_that_does_not_exist_is_noticed() -> None:
    """Positive control: the search tells existing names from names that do not exist."""
    assert modules_of("engine/test_core")
    assert not modules_of("engine/test_cores")
    assert not has(modules_of("engine/test_core"), "test_nothing_of_this_name")


def absent(text: str, files: set[str]) -> list[str]:
    """List the Python files that a text names and that are not among `files`."""
    named_files = re.findall(r"`([\w/]+\.py)`", text)
    return [one for one in named_files if not any(f"/{path}".endswith(f"/{one}") for path in files)]


def test_every_file_named_in_code_is_there() -> None:
    rooms = ("cli", "gateway", "engine", "prefix_cache", "storage", "kernels", "benchmarks")
    code = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    files = {str(path.relative_to(ROOT)) for path in (*code, *TESTS)}
    missing = {path.name: absent(path.read_text(), files) for path in code}
    assert {name: found for name, found in missing.items() if found} == {}
    assert absent("see `core.py`, `engine/core.py` and `cores.py`", files) == ["cores.py"]


def links_of(page: Path) -> list[str]:
    """Return the links of a page to other pages and to its own headings, outside its code."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("http")]


@cache
def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, as MkDocs and GitHub write them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"\s", "-", heading) for heading in plain}


def leads_nowhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return not target.exists() or (anchor != "" and anchor not in anchors_of(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in links_of(page) if leads_nowhere(page, link)] == []


def test_control_a_link_to_a_page_or_a_heading_that_is_not_there_is_noticed() -> None:
    """Positive control: the check finds links and anchors that do not exist."""
    index = ROOT / "docs" / "index.md"
    assert not leads_nowhere(index, "how-to/deploy.md#secrets")
    assert leads_nowhere(index, "how-to/deploys.md")
    assert leads_nowhere(index, "how-to/deploy.md#secret")
    assert sum(len(links_of(page)) for page in PAGES) > 300


def test_every_decision_is_in_the_index_once() -> None:
    decisions = ROOT / "docs" / "decisions"
    pages = [f"{page.parent.name}/{page.name}" for page in decisions.glob("*/0*.md")]
    assert len(pages) > 70
    assert sorted(links_of(decisions / "index.md")) == sorted(pages)


def test_the_overview_is_read_in_ten_minutes() -> None:
    """Ten minutes are 1,500 words, including code and tables."""
    assert len((ROOT / "docs" / "design" / "overview.md").read_text().split()) <= 1500
