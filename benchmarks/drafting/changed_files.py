"""Files that a release of a package changed, with their old and new content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.zoo.fetch import place_of
from tests.zoo.sources import Sdist, Wheel

LONGEST = 40_000  # maximum number of characters of a file

Release = Wheel | Sdist


def changed_files(releases: Iterable[tuple[Release, Release]]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the old and the new content of each file that differs in two releases.

    The packages must have been fetched.
    """
    for before, after in releases:
        old, new = place_of(before), place_of(after)
        for file in sorted(old.rglob(f"*{Path(before.members[0]).suffix}")):
            name = file.relative_to(old)
            if (new / name).exists():
                left, right = file.read_text(), (new / name).read_text()
                if left != right and max(len(left), len(right)) <= LONGEST:
                    yield f"{before.name} {after.version}: {name}", left, right
