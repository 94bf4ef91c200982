"""No two classes have the same name, so an imported name identifies its class."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.seams.project.test_imports import PACKAGES

ROOT = Path(__file__).parents[3]
# matches no private classes, `_Name`
_CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)


def files_by_class() -> Mapping[str, list[Path]]:
    """Map each importable class of the product to the files that define it."""
    found = defaultdict(list)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for name in _CLASS.findall(path.read_text()):
                found[name].append(path.relative_to(ROOT))
    return found


def test_no_two_files_have_a_class_of_one_name() -> None:
    found = files_by_class()
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
    assert found["EngineConfig"] == [Path("engine/config.py")], "the control"
