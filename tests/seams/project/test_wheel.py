"""The wheel contains everything that serves, with weights and pages, and nothing else.

The wheel is built from a copy of the checkout, without a network, with the locked setuptools. In
the checkout itself, setuptools would include files of an earlier build.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("cli", "gateway", "engine", "prefix_cache", "storage", "kernels", "handbook")
DESCRIPTION = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")
# One file of each kind that belongs to pages and scripts, and a file that does not belong into the
# wheel.
PAGES = ("page.html", "page.js", "page.css", "icon.svg", "words.txt", "data.json", "a.sql", "b.lua")
NOT_ASKED_FOR = "notes.odt"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of a copy with an extra directory of pages."""
    copy, made = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    for package in (*PACKAGES, "tests", "benchmarks", "docs"):
        shutil.copytree(
            ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in DESCRIPTION:
        shutil.copy(ROOT / name, copy)
    static = copy / "gateway" / "admin" / "more_pages"
    static.mkdir()
    for name in (*PAGES, NOT_ASKED_FOR):
        (static / name).write_text("x")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--wheel-dir", made, copy], check=True)
    [path] = made.glob("ratoon-*.whl")
    return path


def contents(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


def in_the_tree() -> set[str]:
    """Return every file of the packages, except the embedded model's handbooks."""
    files = [
        path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.*")
    ]
    return {
        path.as_posix()
        for path in files
        if "__pycache__" not in path.parts and path.parts[:2] != ("handbook", "texts")
    }


def test_it_has_every_file_of_the_packages_and_only_those(wheel: Path) -> None:
    more = {f"gateway/admin/more_pages/{name}" for name in PAGES}
    described = {name for name in contents(wheel) if ".dist-info/" in name}
    assert contents(wheel) - described == in_the_tree() | more
    assert {"handbook/model/model.safetensors", "cli/main.py", "cli/py.typed"} < in_the_tree()


def test_the_handbooks_for_tests_are_left_out(wheel: Path) -> None:
    assert (ROOT / "handbook" / "texts" / "handbooks.py").is_file(), "the control: there are some"
    assert not [name for name in contents(wheel) if PurePosixPath(name).match("*/texts/*")]


def test_it_is_described(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        [entries] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        [metadata] = [name for name in archive.namelist() if name.endswith("METADATA")]
        scripts, text = ConfigParser(), archive.read(metadata).decode()
        scripts.read_string(archive.read(entries).decode())
    assert dict(scripts["console_scripts"]) == {"ratoon": "cli.main:main"}
    assert "\nLicense-Expression: Apache-2.0\n" in text
    assert "\n# Ratoon\n" in text, "the README"
    required = [line for line in text.splitlines() if line.startswith("Requires-Dist: torch")]
    assert required, "what is installed serves"
    assert "extra ==" not in required[0]


def test_it_finds_its_model_away_from_a_checkout(wheel: Path, tmp_path: Path) -> None:
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "from cli.models.model_source import resolve; print(resolve('handbook').directory)"
    found = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(found.stdout.strip()) == tmp_path / "handbook" / "model"
