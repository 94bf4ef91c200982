"""What was written and never found, whatever becomes of it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.prefix_cache.scene import Scene, path, tokens

A, B = path("tenant a"), path("tenant b")
IDS = np.arange(100, 140, dtype=np.int32)  # ten blocks of four


def counts(scene: Scene, owner: str = "me") -> tuple[int, int]:
    readership = scene.cache.readership
    return readership.written(owner), readership.unread(owner)


def test_blocks_never_asked_for_again_are_unread() -> None:
    scene = Scene(16)
    scene.run(A, IDS[:12])
    assert counts(scene) == (3, 3)
    assert counts(scene, "nobody") == (0, 0)


def test_found_blocks_count_as_read_once_and_the_others_do_not() -> None:
    scene = Scene(16)
    scene.run(A, IDS[:16])
    for _ in range(3):
        scene.run(A, IDS[:9])  # two whole blocks, splits the node
    assert counts(scene) == (4, 2)
    scene.run(A, IDS[:17])
    assert counts(scene) == (4, 0)


def test_blocks_added_behind_read_ones_are_unread() -> None:
    """Two turns of a conversation: the node of the first has hits when the second grows it."""
    scene = Scene(16)
    scene.run(A, IDS[:8])
    scene.run(A, IDS[:16])
    assert counts(scene) == (4, 2)
    scene.run(A, IDS[:24])
    assert counts(scene) == (6, 2)


def test_another_reader_counts_for_who_wrote() -> None:
    scene = Scene(16)
    scene.run(A, IDS[:8], "writer")
    scene.run(A, IDS[:16], "reader")
    assert counts(scene, "writer") == (2, 0)
    assert counts(scene, "reader") == (2, 2)


def test_an_equal_prompt_of_another_namespace_reads_nothing() -> None:
    scene = Scene(16)
    scene.run(A, IDS[:8], "a")
    scene.run(B, IDS[:16], "b")
    assert (counts(scene, "a"), counts(scene, "b")) == ((2, 2), (4, 4))


@pytest.mark.parametrize("neighbour", [False, True])
def test_evictions_by_others_do_not_change_the_counts(neighbour: bool) -> None:
    """A neighbour that takes all the room changes none of another's counts."""
    scene = Scene(5)
    scene.run(A, IDS[:16], "a")
    scene.run(A, IDS[:9], "a")
    if neighbour:
        scene.run(B, IDS[:20], "b")
        assert scene.matches(A, IDS) == 0
    assert counts(scene, "a") == (4, 2)


def test_blocks_computed_again_after_eviction_count_as_written_again() -> None:
    scene = Scene(5)
    for _ in range(2):
        scene.run(A, IDS[:16], "a")
        scene.run(B, IDS[:20], "b")
    assert counts(scene, "a") == (8, 8)


def test_the_end_of_a_read_prefix_that_was_dropped_is_written_and_read_anew() -> None:
    scene = Scene(6)
    for _ in range(2):
        scene.run(A, IDS[:17], "a")
    assert counts(scene, "a") == (4, 0)
    scene.run(B, IDS[:12], "b")
    assert scene.matches(A, IDS[:16]) == 12  # its last block has given way
    scene.run(A, IDS[:16], "a")
    assert counts(scene, "a") == (5, 1)
    scene.run(A, IDS[:17], "a")
    assert counts(scene, "a") == (5, 0)


def test_unread_is_never_below_0_nor_above_what_was_written() -> None:
    scene, dice = Scene(12), random.Random(7)
    for _ in range(400):
        stem = tokens(*(dice.randrange(2) for _ in range(4 * dice.randrange(1, 6))))
        scene.run(dice.choice([A, B]), stem, dice.choice("xyz"))
        for owner in "xyz":
            written, unread = counts(scene, owner)
            assert 0 <= unread <= written
        scene.cache.check_invariants()
    assert all(0 < counts(scene, owner)[1] < counts(scene, owner)[0] for owner in "xyz")
