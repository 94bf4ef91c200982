"""Each public method, or its interface, has a docstring. Docstrings open with a verb or a noun."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.seams.project.test_imports import PACKAGES

ROOT = Path(__file__).parents[3]
# methods that asyncio.Protocol, pydantic's settings and itsdangerous' signers define
OF_LIBRARIES = {
    *("connection_made", "connection_lost"),
    *("settings_customise_sources", "get_timestamp"),
}
CLAUSES = {
    "As",
    "At",
    "By",
    "For",
    "From",
    "How",
    "In",
    "Of",
    "On",
    "That",
    "Until",
    "What",
    "When",
}
CLAUSES |= {"Where", "Whether", "Which", "Who", "Whose", "Why", "With", "Without"}
NOUNS = {"A", "All", "An", "Any", "Each", "Every", "It", "Its", "None", "One", "The", "Those"}
THIRD_PERSON = {"Adds", "Gives", "Keeps", "Makes", "Raises", "Reads", "Returns", "Sends", "Writes"}
Classes = list[tuple[Path, ast.ClassDef]]
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Trees = dict[Path, ast.Module]


@pytest.fixture(scope="module")
def trees() -> Trees:
    """Parse the files of the product, the benchmarks and the programs of the documentation."""
    return {
        path.relative_to(ROOT): ast.parse(path.read_text())
        for package in [*PACKAGES, "benchmarks", "docs"]
        for path in sorted((ROOT / package).rglob("*.py"))
    }


@pytest.fixture(scope="module")
def classes(trees: Trees) -> Classes:
    """Return the product's classes, with their files."""
    return [
        (path, node)
        for path, tree in trees.items()
        if path.parts[0] in PACKAGES
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]


def bases(one: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).partition("[")[0] for base in one.bases}


def methods(one: ast.ClassDef) -> Iterable[tuple[str, bool]]:
    """Return the public methods, and whether each (for a property, its getter) has a docstring."""
    found: dict[str, bool] = {}
    for node in one.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
            found.setdefault(node.name, ast.get_docstring(node) is not None)
    return found.items()


def test_a_method_without_a_docstring_implements_one_that_has_it(classes: Classes) -> None:
    inherited = {base for _, one in classes for base in bases(one)}
    interfaces = [one for _, one in classes if "Protocol" in bases(one) or one.name in inherited]
    said = {name for one in interfaces for name, is_said in methods(one) if is_said}
    silent = [
        f"{path}: {one.name}.{name}"
        for path, one in classes
        if not one.name.startswith("_")
        for name, is_said in methods(one)
        if not is_said and name not in said | OF_LIBRARIES
    ]
    assert silent == []
    assert {"generate", "launch"} < said, "the control"


def test_an_interface_says_what_each_of_its_methods_does(classes: Classes) -> None:
    interfaces = [(path, one) for path, one in classes if "Protocol" in bases(one)]
    silent = [
        f"{path}: {one.name}.{name}"
        for path, one in interfaces
        for name, is_said in methods(one)
        if not is_said
    ]
    assert silent == []
    assert len(interfaces) > 50, "the control"


def opens_badly(node: Documented) -> bool:
    """Return whether a function opens without a verb, or anything else without a noun."""
    if (text := ast.get_docstring(node)) is None:
        return False
    avoided = CLAUSES
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        is_property = any(ast.unparse(one).endswith("property") for one in node.decorator_list)
        avoided = CLAUSES if is_property else CLAUSES | NOUNS | THIRD_PERSON
    return text.split()[0].rstrip(".,:;") in avoided


def openings(tree: ast.Module) -> list[str]:
    nodes = (node for node in ast.walk(tree) if isinstance(node, Documented))
    return [ast.get_docstring(node) or "" for node in nodes if opens_badly(node)]


def test_a_docstring_opens_with_a_verb_or_a_noun(trees: Trees) -> None:
    found = [f"{path}: {text}" for path, tree in trees.items() for text in openings(tree)]
    assert found == []


def test_an_opening_that_hides_its_verb_or_noun_is_found() -> None:
    bad = [
        '"""Of files."""',
        'class C:\n """What it has."""',
        'def f():\n """The size."""',
        'class C:\n @property\n def size(self):\n  """As it was."""',
    ]
    good = [
        '"""The files."""',
        'class C:\n """A file."""',
        'def f():\n """Return the size."""',
        'class C:\n @property\n def size(self):\n  """The size."""',
    ]
    assert [len(openings(ast.parse(source))) for source in bad] == [1, 1, 1, 1]
    assert [openings(ast.parse(source)) for source in good] == [[], [], [], []]
