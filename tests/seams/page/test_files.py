"""The files of the pages are small, and have nothing inline or from elsewhere.

The CSP forbids such contents.
"""

from __future__ import annotations

import re
from pathlib import Path

import gateway

STATIC = Path(gateway.__file__).parent / "page" / "static"
API = STATIC.parent / "api"
MAX_BYTES = 500_000
MAX_API_BYTES = 550_000  # maximum size of the API page's files, some of them compressed
PACKED = (".gz", ".txt")  # endings of other projects' files, which are compressed or licences
OUTSIDE = re.compile(r"""(?:src|href|import|from|fetch|url)\s*[=(]?\s*["'(](?:https?:)?//""")
INLINE = re.compile(r"""<style|\son\w+="|<script(?![^>]*\ssrc=)|\sstyle=\"""")


def files(folder: Path = STATIC) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def test_all_files_together_are_small() -> None:
    assert 50_000 < sum(path.stat().st_size for path in files()) <= MAX_BYTES
    assert MAX_BYTES / 2 < sum(path.stat().st_size for path in files(API)) <= MAX_API_BYTES


def test_nothing_comes_from_elsewhere_and_nothing_is_inline() -> None:
    """Comments may have addresses: uPlot and other libraries name their home pages there."""
    own = [path for path in [*files(), *files(API)] if path.suffix not in PACKED]
    for path in own:
        text = path.read_text()
        if path.suffix in (".html", ".js", ".css"):
            assert OUTSIDE.search(text) is None, path
        if path.suffix == ".html" or (path.suffix == ".js" and path.parent.name != "vendor"):
            assert INLINE.search(text) is None, path


def test_the_search_finds_what_is_forbidden() -> None:
    assert OUTSIDE.search('<script src="https://cdn.example/x.js">')
    assert OUTSIDE.search('import x from "//cdn.example/x.js"')
    assert INLINE.search("<script>alert(1)</script>")
    assert INLINE.search('<p style="color: red">')


def test_every_library_is_named_with_its_licence() -> None:
    for folder in (STATIC, API):
        vendor = files(folder / "vendor")
        named = (folder / "vendor" / "LICENSES.md").read_text()
        assert [path.name for path in vendor if f"`{path.name}`" not in named] == ["LICENSES.md"]
