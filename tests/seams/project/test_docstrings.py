"""A public method says what it does, in its own class or in the interface that it implements."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.seams.project.test_imports import PACKAGES

ROOT = Path(__file__).parents[3]
OF_LIBRARIES = {  # of asyncio.Protocol, pydantic's settings and itsdangerous' signers
    *("connection_made", "connection_lost"),
    *("settings_customise_sources", "get_timestamp"),
}
Classes = list[tuple[Path, ast.ClassDef]]


@pytest.fixture(scope="module")
def classes() -> Classes:
    """Those of the product, with their files."""
    return [
        (path.relative_to(ROOT), node)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]


def bases(one: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).partition("[")[0] for base in one.bases}


def methods(one: ast.ClassDef) -> Iterable[tuple[str, bool]]:
    """The public ones, and whether each has a docstring; of a property it is the reader's."""
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
