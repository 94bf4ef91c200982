"""Counts of written and unread blocks by owner, and of first reads by the writer's label.

Only a hit of the same namespace makes a block read. Evictions change no count, and a block that is
computed again after its eviction counts as written again.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from prefix_cache.hashing import TokenIds
from prefix_cache.leases.lease import Lease
from prefix_cache.namespace import NamespacePath
from tests.prefix_cache.support.scene import Scene, path, tokens
from tests.prefix_cache.support.tiers_scene import TierScene

A, B = path("tenant a"), path("tenant b")
IDS = np.arange(100, 140, dtype=np.int32)  # ten blocks of four tokens


def counts(scene: Scene, owner: str = "me") -> tuple[int, int]:
    reuse_accounting = scene.cache.reuse_accounting
    return reuse_accounting.written(owner), reuse_accounting.unread(owner)


def test_blocks_never_asked_for_again_are_unread() -> None:
    scene = Scene(16)
    scene.run(A, IDS[:12])
    assert counts(scene) == (3, 3)
    assert counts(scene, "nobody") == (0, 0)


def test_found_blocks_count_as_read_once_and_the_others_do_not() -> None:
    scene = Scene(16)
    scene.run(A, IDS[:16])
    for _ in range(3):
        scene.run(A, IDS[:9])  # reads two whole blocks, which splits the node
    assert counts(scene) == (4, 2)
    scene.run(A, IDS[:17])
    assert counts(scene) == (4, 0)


def test_blocks_added_behind_read_ones_are_unread() -> None:
    """Count new blocks of a conversation's turn as unread, though they extend a node that has
    hits.
    """
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
    """Fill the cache with another owner's blocks: evictions do not change the counts."""
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
    assert scene.matches(A, IDS[:16]) == 12  # the last of A's four blocks was evicted
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


def test_what_is_pinned_was_found_before_it_changes_its_owner() -> None:
    scene = Scene(16)
    scene.run(A, IDS[:12], "writer")
    assert counts(scene, "writer") == (3, 3)
    assert scene.cache.pin(A, IDS[:8], owner="published", now=scene.tick()) is not None
    scene.run(A, IDS[:13], "reader")
    assert counts(scene, "writer") == (3, 0)
    assert counts(scene, "published") == (0, 0)


def counted_in_parent(
    scene: Scene, where: NamespacePath, ids: TokenIds, writer: str, owner: str = "me"
) -> tuple[int, dict[str, int]]:
    """Run a whole request; return the number of written blocks, and the first reads by label."""
    lease = scene.start(where, ids, owner, writer=writer)
    scene.release(lease)
    return lease.num_written, lease.first_reads


def test_who_finds_blocks_first_is_told_who_wrote_them_and_nobody_else_is() -> None:
    scene = Scene(16)
    assert counted_in_parent(scene, A, IDS[:12], "ann") == (3, {})
    assert counted_in_parent(scene, A, IDS[:13], "ben") == (0, {"ann": 3})
    assert counted_in_parent(scene, A, IDS[:13], "ben") == (0, {})
    assert counted_in_parent(scene, A, IDS[:13], "ann") == (0, {})


def test_an_other_owner_s_first_read_names_the_writer_too() -> None:
    scene = Scene(16)
    counted_in_parent(scene, A, IDS[:12], "ann", owner="one")
    assert counted_in_parent(scene, A, IDS[:17], "ben", owner="two") == (1, {"ann": 3})
    assert counted_in_parent(scene, B, IDS[:17], "cid", owner="two") == (4, {})


def test_blocks_of_another_cache_are_written_under_no_label() -> None:
    scene = Scene(16)
    lease = scene.must_acquire(A, IDS[:12], writer="ann")
    scene.compute(lease, IDS[:12], 0, 12)
    keys = scene.keys(A, IDS[:12])
    scene.cache.commit(lease, IDS[:12], 8, keys, now=scene.tick(), is_written=False)
    assert lease.num_written == 0
    scene.cache.commit(lease, IDS[:12], 12, keys, now=scene.tick())
    assert lease.num_written == 1, "the control: what it computes itself is"
    scene.release(lease)
    assert counted_in_parent(scene, A, IDS[:13], "ben") == (0, {"ann": 1})


def test_two_who_read_at_once_share_what_there_is_to_find() -> None:
    scene = Scene(32)
    counted_in_parent(scene, A, IDS[:16], "ann")
    short = scene.must_acquire(A, IDS[:9], writer="ben")
    long = scene.must_acquire(A, IDS[:17], writer="cid")
    assert (short.first_reads, long.first_reads) == ({"ann": 2}, {"ann": 2})


def test_both_parts_of_a_cut_run_keep_the_label() -> None:
    scene = Scene(32)
    counted_in_parent(scene, A, IDS[:24], "ann")
    other = np.concatenate([IDS[:12], IDS[:8] + 50])
    assert counted_in_parent(scene, A, other, "ben") == (2, {"ann": 3})  # splits the node
    assert counted_in_parent(scene, A, IDS[:25], "cid") == (0, {"ann": 3})
    assert counted_in_parent(scene, A, np.append(other, 7).astype(np.int32), "cid") == (
        0,
        {"ben": 2},
    )


def test_turns_of_a_conversation_under_labels_of_different_days() -> None:
    scene = Scene(32)
    assert counted_in_parent(scene, A, IDS[:8], "monday") == (2, {})
    assert counted_in_parent(scene, A, IDS[:16], "tuesday") == (2, {"monday": 2})
    assert counted_in_parent(scene, A, IDS[:24], "tuesday") == (2, {"tuesday": 2})
    assert counted_in_parent(scene, A, IDS[:25], "") == (0, {"tuesday": 2})
    assert scene.cache.tree.num_nodes == 2  # each day has one node


def test_generated_blocks_are_written_like_a_prompt_s() -> None:
    scene = Scene(16)
    lease = scene.start(A, IDS[:8], writer="ann")
    for end in (10, 12, 14, 16):
        assert scene.cache.extend(lease, end, now=scene.tick())
        scene.compute(lease, IDS[:end], end - 2, end)
        scene.commit(lease, IDS[:end])
    assert lease.num_written == 4
    scene.release(lease)
    assert counted_in_parent(scene, A, IDS[:17], "ben") == (0, {"ann": 4})


def test_what_somebody_else_put_there_meanwhile_was_not_written_twice() -> None:
    scene = Scene(32)
    first, second = [scene.must_acquire(A, IDS[:12], writer=name) for name in ("ann", "ben")]
    for lease in (first, second):
        scene.compute(lease, IDS[:12], 0, 12)
        scene.commit(lease, IDS[:12])
        scene.release(lease)
    assert (first.num_written, second.num_written) == (3, 0)
    assert counted_in_parent(scene, A, IDS[:13], "cid") == (0, {"ann": 3})


def test_a_request_without_a_label_writes_and_is_read_by_owner_alone() -> None:
    scene = Scene(16)
    assert counted_in_parent(scene, A, IDS[:12], "") == (0, {})
    assert counted_in_parent(scene, A, IDS[:13], "ben") == (0, {})
    assert counts(scene) == (3, 0)


def test_what_lies_before_the_namespace_of_its_own_has_no_label() -> None:
    """Label no block of a published prefix: its first tenant learns nothing of its later
    readers.
    """
    scene, where = Scene(32), path("published", "tenant a", length=2)
    assert counted_in_parent(scene, where, IDS[:16], "ann") == (2, {})
    assert counted_in_parent(scene, path("published", "tenant b", length=2), IDS[:16], "ben") == (
        2,
        {},
    )
    assert counted_in_parent(scene, where, IDS[:17], "ann") == (0, {"ann": 2})


def test_a_sequence_that_resumes_reads_its_own_blocks() -> None:
    scene = Scene(16)
    lease = scene.start(A, IDS[:12], writer="ann")
    scene.release(lease)  # as after a preemption
    again = scene.must_acquire(A, IDS[:13], writer="ann")
    assert (lease.num_written, again.first_reads) == (3, {"ann": 3})


def test_an_evicted_end_is_written_and_found_anew() -> None:
    scene = Scene(6)
    counted_in_parent(scene, A, IDS[:17], "ann")
    counted_in_parent(scene, B, IDS[:12], "ben")
    assert scene.matches(A, IDS[:16]) == 12  # the last of A's four blocks was evicted
    assert counted_in_parent(scene, A, IDS[:16], "cid") == (1, {"ann": 3})
    assert counted_in_parent(scene, A, IDS[:17], "dan") == (0, {"cid": 1})


def test_what_comes_back_from_the_host_is_found_by_whoever_asks_for_it() -> None:
    scene = TierScene(4, host=8)
    counted_in_parent(scene, A, IDS[:12], "ann")
    scene.release(in_time(scene, B, IDS[:16]))
    assert scene.cache.tree.match(A, IDS[:12]).found.host > 0
    assert in_time(scene, A, IDS[:13]).first_reads == {"ann": 3}


def in_time(scene: TierScene, where: NamespacePath, ids: TokenIds, writer: str = "") -> Lease:
    """Return a lease, once copies have made room for it."""
    while (lease := scene.acquire(where, ids, writer=writer)) is None:
        scene.end_copies()
    return lease


def test_what_an_earlier_engine_wrote_has_no_label() -> None:
    scene = TierScene(16, disk=16)
    counted_in_parent(scene, A, IDS[:16], "ann")
    while scene.cache.restart.save(100):
        scene.end_copies()
    assert scene.restart() == 4
    found = in_time(scene, A, IDS[:17], "ben")
    assert (found.num_shared, found.first_reads) == (4, {})
    scene.copy_all()
    scene.compute(found, IDS[:20], 16, 17)
    assert scene.cache.extend(found, 24, now=scene.tick())
    scene.compute(found, IDS[:24], 17, 24)
    scene.commit(found, IDS[:24])
    scene.release(found)
    assert found.num_written == 2
    assert in_time(scene, A, IDS[:25]).first_reads == {"ben": 2}


def test_labels_add_up_to_what_owners_wrote_and_read() -> None:
    """Label random requests with their owners: counts by label equal counts by owner."""
    scene, dice = Scene(12), random.Random(11)
    written: Counter[str] = Counter()
    read: Counter[str] = Counter()
    for _ in range(400):
        stem = tokens(*(dice.randrange(2) for _ in range(4 * dice.randrange(1, 6))))
        name = dice.choice("xyz")
        wrote, first = counted_in_parent(scene, dice.choice([A, B]), stem, name, owner=name)
        written[name] += wrote
        read.update(first)
        for owner in "xyz":
            assert counts(scene, owner) == (written[owner], written[owner] - read[owner])
    scene.cache.check_invariants()
    assert all(0 < read[name] < written[name] for name in "xyz")
