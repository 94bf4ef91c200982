"""No folder has more Python files than a reader takes in at a glance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[3]
MOST = 15
ROOMS = (
    *("cli", "gateway", "engine", "prefix_cache", "storage", "kernels"),
    *("handbook", "benchmarks", "docs", "tests"),
)


def crowded(files: Iterable[Path]) -> dict[str, int]:
    """List the folders with more than `MOST` files, beside `__init__.py`."""
    counts = Counter(str(one.parent) for one in files if one.name != "__init__.py")
    return {folder: count for folder, count in counts.items() if count > MOST}


def test_no_folder_is_crowded() -> None:
    files = [one.relative_to(ROOT) for room in ROOMS for one in (ROOT / room).rglob("*.py")]
    assert len(files) > 2000
    assert crowded(files) == {}
    more = [Path("gateway/admin") / f"route_{number}.py" for number in range(MOST)]
    assert list(crowded([*files, *more])) == ["gateway/admin"]
