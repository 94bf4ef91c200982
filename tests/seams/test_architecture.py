"""`docs/architecture.md` names every file there is, and none that is not.

A row names files of the room in its section's heading. A name with a folder gives it to those
behind it; a row of a folder alone (`admin/`) has its files in the second column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
ROOMS = (
    "cli", "gateway", "engine", "prefix_cache", "storage", "kernels", "benchmarks", "handbook",
)  # fmt: skip
EVERYWHERE = ("__init__.py", "__main__.py")


def sections() -> Iterator[tuple[str, str]]:
    """Headings and what stands below them."""
    files = PAGE.read_text().split("## The files, in that order")[1].split("\n## ")[0]
    for section in files.split("\n### ")[1:]:
        heading, _, body = section.partition("\n")
        yield heading, body


def rows(body: str) -> Iterator[list[str]]:
    """The names of each row; of a section without a table, all at once."""
    table = [line.split("|")[1:3] for line in body.splitlines() if line.startswith("| `")]
    if not table:
        yield re.findall(r"`([a-z_]+)`", body)
    for names, told in table:
        first = re.findall(r"`([^`]+)`", names)
        if first[0].endswith("/"):
            yield [first[0] + name for name in re.findall(r"`([a-z_]+)`", told)]
        else:
            yield first


def paths_of(room: str, names: list[str]) -> Iterator[Path]:
    """What a row names: beside the name before it, or else in the room itself."""
    folder = Path()
    for name in names:
        if "/" in name:
            folder = Path(name).parent
        below = ROOT / room
        beside = below / folder / f"{Path(name).name}.py"
        yield beside if beside.exists() else below / f"{name}.py"


def named() -> set[str]:
    found: set[Path] = set()
    for heading, body in sections():
        room = heading.split(":")[0]
        if room == "deploy":
            continue
        for names in rows(body):
            found |= set(paths_of(room if room in ROOMS else "", names))
    return {str(path.relative_to(ROOT)) for path in found if path.name not in EVERYWHERE}


def present(*rooms: str) -> set[str]:
    found = {path for room in rooms for path in (ROOT / room).rglob("*.py")}
    return {str(path.relative_to(ROOT)) for path in found if path.name not in EVERYWHERE}


def test_every_file_stands_on_the_page() -> None:
    assert present(*ROOMS) - named() == set()


def test_every_file_on_the_page_is_there() -> None:
    assert {path for path in named() if not (ROOT / path).is_file()} == set()


def test_a_file_that_is_not_on_the_page_would_be_seen() -> None:
    """The control: the page is read, and not everything is taken to be on it."""
    assert {"cli/main.py", "gateway/admin/cache.py", "storage/disk/lmdb_file.py"} <= named()
    assert "gateway/nothing.py" not in named()
    assert len(present("gateway")) > 50
