"""No module loads code from data: it uses no pickle, no eval, and no loader that may use them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("cli", "gateway", "engine", "prefix_cache", "storage", "kernels", "handbook")
MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}
CALLS = {"eval", "exec", "torch.load", "yaml.load", "recv_pyobj", "send_pyobj"}
# Only files with one of these words are parsed, which takes most of the time.
WORDS = MODULES | {name.rpartition(".")[2] for name in CALLS}


def unsafe_names(source: str) -> list[str]:
    """Return imports of `MODULES` and calls of `CALLS` in a Python source."""
    found = list[str]()
    if not any(word in source for word in WORDS):
        return found
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            found.append(node.module or "")
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in CALLS or name.split(".")[-1] in {"recv_pyobj", "send_pyobj"}:
                found.append(name)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_reads_nothing_that_can_run_code(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    found = {str(file): unsafe_names(file.read_text()) for file in files}
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(f)",
        "eval(x)",
        "socket.recv_pyobj()",
    ],
)
def test_the_search_finds_what_it_looks_for(source: str) -> None:
    assert unsafe_names(source)
