"""Ghosts of evicted runs are found by their first keys, and the oldest ghosts are forgotten."""

from __future__ import annotations

from random import Random

from prefix_cache.eviction.expected_value import Ghost, Ghosts
from prefix_cache.hashing import KEY_BYTES


def keys(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(KEY_BYTES, "big") for number in numbers)


def test_a_run_is_found_by_its_first_key() -> None:
    ghosts = Ghosts()
    ghosts.add(keys(1, 2, 3), uses=2)
    assert ghosts.uses(keys(1)) == 2
    assert ghosts.uses(keys(2)) == 0
    assert ghosts.num_blocks == 3


def test_runs_used_differently_are_told_apart() -> None:
    ghosts = Ghosts()
    ghosts.add(keys(1, 2), uses=3)
    ghosts.add(keys(3), uses=3)
    ghosts.add(keys(4), uses=1)
    assert ghosts.alike(keys(1, 2, 3, 4, 5)) == 3
    assert ghosts.alike(keys(4, 5)) == 1
    assert ghosts.alike(keys(1, 2, 3)) == 0
    assert ghosts.alike(keys(7, 8, 9)) == 0
    assert ghosts.alike(keys(7, 4)) == 1


def test_only_blocks_that_were_here_are_taken_for_that() -> None:
    ghosts = Ghosts()
    ghosts.add(keys(1, 2, 3), uses=2)
    assert ghosts.alike(keys(1, 2, 9, 10)) == 2


def test_common_blocks_agree_with_counting_one_by_one() -> None:
    random = Random(3)
    for _ in range(200):
        length, same, other = (random.randrange(1, 20) for _ in range(3))
        run = list(range(length))
        asked = run[:same] + [1000 + n for n in range(other)]
        assert Ghost(keys(*run), 1).common_blocks(keys(*asked)) == min(length, same)


def test_blocks_that_are_back_are_no_ghosts_any_more() -> None:
    ghosts = Ghosts()
    ghosts.add(keys(1, 2), uses=1)
    ghosts.add(keys(3, 4), uses=1)
    ghosts.pop(keys(1, 2, 3, 4, 5))
    assert (len(ghosts), ghosts.num_blocks) == (0, 0)


def test_the_same_run_twice_is_one_ghost() -> None:
    ghosts = Ghosts()
    ghosts.add(keys(1, 2), uses=1)
    ghosts.add(keys(1, 2, 3), uses=4)
    assert (len(ghosts), ghosts.num_blocks, ghosts.uses(keys(1))) == (1, 3, 4)


def test_the_oldest_are_forgotten() -> None:
    ghosts = Ghosts()
    for number in range(10):
        ghosts.add(keys(number), uses=1)
    ghosts.keep(3)
    assert [n for n in range(10) if ghosts.uses(keys(n))] == [7, 8, 9]
