"""A buffer shared with the disk process is free again once it is returned, and the process has
answered or died.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage.disk.staging import Staging
from tests.storage.scene import BLOCK_BYTES, CPU


@pytest.fixture
def staging() -> Iterator[Staging]:
    staging = Staging(3, BLOCK_BYTES, CPU)
    yield staging
    staging.close()


def test_hands_out_each_buffer_once(staging: Staging) -> None:
    taken = [staging.take() for _ in range(4)]
    assert sorted(b for b in taken if b is not None) == [0, 1, 2]
    assert taken[3] is None
    staging.give_back(1)
    assert (staging.num_free, staging.take()) == (1, 1)


@pytest.mark.parametrize("answer_first", [False, True])
def test_an_owed_buffer_is_free_after_both_its_answer_and_its_return(
    staging: Staging, answer_first: bool
) -> None:
    buffers = [staging.take() for _ in range(3)]
    assert buffers[0] is not None
    staging.owe(9, buffers[0])
    assert staging.is_owed
    if answer_first:
        assert staging.answered(9)
        assert staging.num_free == 0
        staging.give_back(buffers[0])
    else:
        staging.give_back(buffers[0])
        assert staging.num_free == 0
        assert staging.answered(9)
    assert staging.num_free == 1
    assert not staging.is_owed
    assert not staging.answered(9)


def test_a_dead_process_owes_nothing(staging: Staging) -> None:
    first, second = staging.take(), staging.take()
    assert first is not None
    assert second is not None
    staging.owe(1, first)
    staging.owe(2, second)
    staging.give_back(first)
    staging.no_answers_to_come()
    assert (staging.num_free, staging.is_owed) == (2, False)
    staging.give_back(second)
    assert staging.num_free == 3
