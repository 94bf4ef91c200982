"""Each of several test workers begins with tests that start servers, and every test runs once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.order import SEAMS, servers_first

SERVERS = ["seams/b", "seams/cache/c", "seams/page/d", "seams/page/e"]
FILES = ["cli/a", *SERVERS, "seams/project/f", *(f"storage/z{number}" for number in range(9))]


@dataclass(frozen=True)
class OneOf:
    """A test: its file, and its number in the file."""

    path: Path
    number: int


TESTS = [OneOf(SEAMS.parent / f"{name}.py", number) for name in FILES for number in range(30)]


def parts(num_workers: int) -> list[list[OneOf]]:
    """Return the tests that xdist gives each worker."""
    left, found = servers_first(TESTS, num_workers), []
    for others in range(num_workers, 0, -1):
        size = len(left) // others
        found.append(left[:size])
        left = left[size:]
    assert not left
    return found


def names(part: list[OneOf]) -> list[str]:
    """List the files of a worker's tests, in order."""
    return list(dict.fromkeys(f"{test.path.parent.name}/{test.path.stem}" for test in part))


@pytest.mark.parametrize("num_workers", range(1, 9))
def test_none_is_lost_and_those_of_a_file_keep_their_order(num_workers: int) -> None:
    ordered = servers_first(TESTS, num_workers)
    assert sorted(ordered, key=TESTS.index) == TESTS
    for path in {test.path for test in TESTS}:
        assert [test.number for test in ordered if test.path == path] == [*range(30)]


def test_all_but_one_begin_with_servers_and_what_is_shared_stays_together() -> None:
    first, second, third = map(names, parts(3))
    assert first[:3] == ["seams/b", "page/d", "page/e"]
    assert second[:1] == ["cache/c"]
    assert not {"seams/b", "cache/c", "page/d", "page/e"} & {*second[1:], *third}
    assert "project/f" in {*first, *second, *third}
