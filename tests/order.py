"""The order in which several workers run the tests: tests that wait for processes come first.

xdist gives each worker an equal run of neighbouring tests, and an idle worker takes tests from the
end of another's run. In the order of names, one worker would begin with all tests of whole servers,
which wait as much as they compute. In the end all workers would run only such tests, and cores
would be idle. Therefore all workers except one begin with a part of these tests, while that one
computes, and all workers end with tests of milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Protocol, TypeVar

SEAMS = Path(__file__).parent / "seams"
COMPUTED = SEAMS / "project"


class HasPath(Protocol):
    """A test of which only the file is known."""

    @property
    def path(self) -> Path:
        """Return the test's file."""
        ...


Test = TypeVar("Test", bound=HasPath)


def servers_first(items: Sequence[Test], num_workers: int) -> list[Test]:
    """Order the tests so that each worker's run begins with tests that start servers."""
    groups = [list(group) for _, group in groupby(filter(_starts_servers, items), _sharing)]
    waiting = max(num_workers - 1, 1)
    parts = [list(chain(*groups[worker::waiting])) for worker in range(waiting)] + [[]]
    others = [item for item in items if not _starts_servers(item)]
    ordered: list[Test] = []
    for worker, part in enumerate(parts[:num_workers]):
        # the size of the run that xdist gives to each worker
        size = (len(items) - len(ordered)) // (num_workers - worker)
        room = max(size - len(part), 0)
        ordered += [*part, *others[:room]]
        others = others[room:]
    return ordered + others


def _starts_servers(item: HasPath) -> bool:
    return item.path.is_relative_to(SEAMS) and not item.path.is_relative_to(COMPUTED)


def _sharing(item: HasPath) -> Path:
    """Return the file, or the folder whose files share a server, whose tests must stay with one
    worker.
    """
    folder = item.path.parent
    return folder if folder != SEAMS and (folder / "conftest.py").exists() else item.path
