"""A lease finds the committed blocks of its prompt with the right KV, and frees all in the end."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import pytest

from prefix_cache.errors import LeaseError
from prefix_cache.hashing import KEY_BYTES, block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from prefix_cache.tree.node import Node
from storage.move import Move, Tier
from tests.prefix_cache.support.scene import Scene, path, tokens

A, B = path("tenant a"), path("tenant b")
IDS = np.arange(100, 120, dtype=np.int32)  # five blocks of four tokens


def unchanged(scene: Scene) -> tuple[object, ...]:
    """Return all of the cache's visible state."""
    cache = scene.cache
    cache.check_invariants()
    return (
        cache.capacity.pool(),
        cache.capacity.owners(),
        cache.tree.num_nodes,
        cache.tree.depth,
        scene.matches(A, IDS),
    )


# ---- finding


def test_a_cold_prompt_is_all_private() -> None:
    scene = Scene(8)
    lease = scene.must_acquire(A, IDS[:10])
    assert (lease.cached_tokens, lease.moves, len(lease.blocks)) == (0, (), 3)
    assert scene.cache.capacity.pool().leased == 3
    assert scene.matches(A, IDS) == 0
    scene.cache.check_invariants()


def test_committed_blocks_are_found_with_the_right_kv() -> None:
    scene = Scene(8)
    assert scene.run(A, IDS[:12]) == 0
    assert scene.matches(A, IDS) == 12
    lease = scene.must_acquire(A, IDS[:14])
    assert lease.cached_tokens == 12
    scene.compute(lease, IDS[:14], 12, 14)  # reads the cached tokens and checks them
    scene.cache.check_invariants()


def test_matching_changes_nothing() -> None:
    scene = Scene(8)
    scene.run(A, IDS[:16])
    before = unchanged(scene)
    assert scene.matches(A, IDS[:6]) == 4
    assert scene.matches(B, IDS) == 0
    assert unchanged(scene) == before


def test_the_last_token_is_never_cached() -> None:
    scene = Scene(8)
    scene.run(A, IDS[:12])
    lease = scene.must_acquire(A, IDS[:12])
    assert lease.cached_tokens == 11
    source, target = scene.memory[2], lease.blocks[2]
    assert lease.moves == (Move(Tier.DEVICE, 2, Tier.DEVICE, int(target)),)
    scene.compute(lease, IDS[:12], 11, 12)
    assert scene.memory[target] == source
    scene.cache.check_invariants()


def test_part_of_a_block_is_copied_and_not_computed() -> None:
    scene = Scene(8)
    scene.run(A, IDS[:12])
    other = tokens(*IDS[:6], 7, 7, 7)
    lease = scene.must_acquire(A, other)
    assert lease.cached_tokens == 6
    assert lease.num_shared == 1
    scene.compute(lease, other, 6, 9)
    scene.commit(lease, other)
    assert scene.matches(A, other) == 8
    assert scene.matches(A, IDS) == 12
    scene.cache.check_invariants()


def test_one_block_alone_can_be_matched_in_part() -> None:
    scene = Scene(8)
    scene.run(A, IDS[:4])
    assert scene.run(A, IDS[:4]) == 3
    assert scene.run(A, IDS[:1]) == 0
    assert scene.run(B, IDS[:4]) == 0


def test_generated_blocks_are_found_by_the_next_turn() -> None:
    scene = Scene(16)
    ids = IDS[:6]
    lease = scene.start(A, ids)
    prompt_keys = scene.keys(A, ids)
    for token in range(900, 909):
        start, ids = len(ids), np.append(ids, np.int32(token))
        assert scene.cache.extend(lease, len(ids), now=scene.tick())
        scene.compute(lease, ids, start, len(ids))
        scene.cache.commit(lease, ids, len(ids), prompt_keys, now=scene.tick())
        scene.cache.check_invariants()
    scene.release(lease)
    assert scene.matches(A, ids) == 12
    assert scene.cache.tree.num_nodes == 1  # one node that grew, not a chain of one-block nodes
    node = next(scene.cache.tree.nodes())
    assert node.edge.keys == block_keys(A, ids, 4)


def test_keys_are_chained_on_over_a_change_of_namespace() -> None:
    scene, where = Scene(16), path("pub", "group", "tenant", length=2)
    lease = scene.must_acquire(where, IDS)
    scene.compute(lease, IDS, 0, 20)
    scene.cache.commit(lease, IDS, 12, scene.keys(where, IDS[:4]), now=scene.tick())
    scene.cache.commit(lease, IDS, 20, scene.keys(where, IDS[:4]), now=scene.tick())
    keys = b"".join(node.edge.keys for node in scene.cache.tree.nodes())
    assert keys == block_keys(where, IDS, 4)
    assert len(keys) == 5 * KEY_BYTES


def test_without_sharing_nothing_is_read_and_nothing_is_left() -> None:
    scene = Scene(16)
    scene.run(A, IDS)
    lease = scene.must_acquire(A, IDS, shares=False)
    assert (lease.cached_tokens, lease.num_shared, lease.moves) == (0, 0, ())
    other = tokens(*range(20))
    private = scene.must_acquire(A, other, shares=False)
    scene.compute(private, other, 0, 20)
    scene.commit(private, other)
    scene.cache.check_invariants()
    scene.release(private)
    scene.release(lease)
    assert scene.matches(A, other) == 0
    # positive control: leases that share leave their blocks in the tree
    assert scene.matches(A, IDS) == 20


# ---- namespaces


def test_two_tenants_share_nothing() -> None:
    scene = Scene(16)
    assert scene.run(A, IDS) == 0
    assert scene.matches(B, IDS) == 0
    assert scene.run(B, IDS) == 0
    assert scene.run(A, IDS) == 19  # positive control: the same tenant finds the prompt
    assert scene.run(B, IDS) == 19


@pytest.mark.parametrize(
    ("names", "cached"),
    [
        (("pub", "group", "tenant"), 19),
        (("pub", "group", "other"), 16),
        (("pub", "other", "tenant"), 8),
        (("pub",), 8),
        (("other", "group", "tenant"), 0),
        (("tenant",), 0),
    ],
)
def test_a_path_is_shared_as_far_as_its_namespaces_agree(
    names: tuple[str, ...], cached: int
) -> None:
    scene = Scene(16)
    scene.run(path("pub", "group", "tenant", length=2), IDS)
    assert scene.run(path(*names, length=2), IDS) == cached
    scene.cache.check_invariants()


def test_a_partial_copy_never_crosses_namespaces() -> None:
    scene = Scene(16)
    scene.run(path("pub", "tenant a"), IDS[:8])
    ids = tokens(*IDS[:6], 1)
    assert scene.must_acquire(path("pub", "tenant b"), ids).cached_tokens == 4
    assert scene.must_acquire(path("pub", "tenant a"), ids).cached_tokens == 6


# ---- concurrent leases


def test_the_second_to_commit_keeps_its_duplicates_until_release() -> None:
    scene = Scene(16)
    first, second = scene.must_acquire(A, IDS), scene.must_acquire(A, IDS)
    scene.compute(first, IDS, 0, 20)
    scene.compute(second, IDS, 0, 20)
    scene.commit(first, IDS, 12)
    scene.commit(second, IDS, 17)
    scene.cache.check_invariants()
    assert second.duplicates == [(0, 3)]
    assert second.first_added == 3
    scene.commit(first, IDS)
    assert first.duplicates == [(3, 4)]
    scene.cache.check_invariants()
    assert scene.matches(A, IDS) == 20
    scene.release(first)
    scene.cache.check_invariants()
    scene.release(second)
    assert scene.cache.capacity.pool().free == 16 - 5
    assert scene.run(A, IDS) == 19


def test_duplicates_side_by_side_are_one_range() -> None:
    scene = Scene(16)
    first, second = scene.must_acquire(A, IDS), scene.must_acquire(A, IDS)
    scene.compute(first, IDS, 0, 20)
    scene.compute(second, IDS, 0, 20)
    for computed in (4, 8, 16):
        scene.commit(first, IDS, computed)
        scene.commit(second, IDS, computed)
    assert second.duplicates == [(0, 4)]


def test_another_owner_adds_a_child_and_does_not_grow_the_node() -> None:
    scene = Scene(16)
    scene.run(A, IDS[:8], owner="anna")
    scene.run(A, IDS[:16], owner="ben")
    assert scene.cache.tree.num_nodes == 2
    held = {owner: use.blocks_held for owner, use in scene.cache.capacity.owners().items()}
    assert held == {"anna": 2, "ben": 2}
    scene.run(A, IDS, owner="ben")
    assert scene.cache.tree.num_nodes == 2  # positive control: ben's own node grows


def test_a_node_that_another_lease_holds_does_not_grow() -> None:
    scene = Scene(32)
    ids = tokens(*IDS, 1)
    first = scene.start(A, ids)
    second = scene.start(A, ids)
    more, other = tokens(*ids, 2, 3, 4), tokens(*ids, 5, 6, 7)
    for lease, longer in ((first, more), (second, other)):
        assert scene.cache.extend(lease, 24, now=scene.tick())
        scene.compute(lease, longer, 21, 24)
        scene.commit(lease, longer)
        scene.cache.check_invariants()
    assert scene.cache.tree.num_nodes == 3
    assert scene.matches(A, more) == scene.matches(A, other) == 24


# ---- flush and discard


def test_flush_forgets_and_frees_what_nobody_holds() -> None:
    scene = Scene(16)
    scene.run(A, IDS)
    scene.run(B, IDS[:8])
    assert scene.cache.flush() == 7
    assert scene.matches(A, IDS) == scene.matches(B, IDS) == 0
    assert scene.cache.capacity.pool().free == 16
    assert scene.cache.flush() == 0


def test_flush_by_namespace_spares_the_others() -> None:
    scene = Scene(32)
    scene.run(path("pub", "a", length=2), IDS)
    scene.run(path("pub", "b", length=2), IDS)
    assert scene.cache.flush(namespace=path("a").at(0)) == 3
    assert scene.matches(path("pub", "a", length=2), IDS) == 8
    assert scene.matches(path("pub", "b", length=2), IDS) == 20
    scene.cache.check_invariants()
    # two blocks in the namespace, and three blocks after them
    assert scene.cache.flush(namespace=path("pub").at(0)) == 5
    assert scene.cache.capacity.pool().free == 32


def test_flush_of_namespaces_by_their_first_bytes() -> None:
    scene = Scene(32)
    alike = [NamespacePath.single(Namespace(b"schema-1" + last * 8)) for last in (b"a", b"b")]
    other = NamespacePath.single(Namespace(b"schema-2" + b"a" * 8))
    for one in (*alike, other):
        scene.run(one, IDS)
    assert scene.cache.flush(namespace=b"schema-1") == 10
    assert [scene.matches(one, IDS) for one in (*alike, other)] == [0, 0, 20]
    scene.cache.check_invariants()


def test_flush_by_owner_and_by_both() -> None:
    scene = Scene(32)
    scene.run(A, IDS[:8], owner="anna")
    scene.run(A, IDS, owner="ben")
    scene.run(B, IDS, owner="ben")
    assert scene.cache.flush(namespace=A.at(0), owner="ben") == 3
    assert (scene.matches(A, IDS), scene.matches(B, IDS)) == (8, 20)
    assert scene.cache.flush(owner="ben") == 5
    assert (scene.matches(A, IDS), scene.matches(B, IDS)) == (8, 0)
    scene.cache.check_invariants()


class Unlisted(dict[Node, None]):
    """Nodes that may be found, but not listed."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("all nodes were listed")


def test_a_flush_of_a_namespace_looks_at_no_other_nodes() -> None:
    """A tenant with many nodes could otherwise slow all others by deleting small schemas."""
    scene = Scene(32)
    for name in ("schema-1 a", "schema-1 b", "other"):
        scene.run(path(name), IDS, owner="ann")
    tree = scene.cache.tree
    tree.owned["ann"] = Unlisted(tree.owned["ann"])
    assert scene.cache.flush(namespace=b"schema-1", owner="ann") == 10
    assert scene.cache.flush(namespace=b"schema-1", owner="ann") == 0
    assert scene.matches(path("other"), IDS) == 20
    with pytest.raises(AssertionError, match="listed"):
        scene.cache.flush(owner="ann")


def test_leased_blocks_outlive_a_flush_until_their_last_reader() -> None:
    scene = Scene(16)
    first = scene.start(A, IDS)
    second = scene.must_acquire(A, IDS)
    assert scene.cache.flush() == 5
    scene.cache.check_invariants()
    assert scene.matches(A, IDS) == 0
    fresh = scene.must_acquire(B, tokens(*range(40)))  # takes all free blocks
    scene.compute(fresh, tokens(*range(40)), 0, 40)
    assert scene.acquire(B, tokens(1)) is None
    scene.release(first)
    scene.compute(second, IDS, 19, 20)  # the flushed lease still reads its own blocks
    scene.release(second)
    scene.cache.check_invariants()
    assert scene.cache.capacity.pool().free == 6


def test_a_lease_on_a_detached_node_does_not_enter_the_tree_again() -> None:
    scene = Scene(16)
    lease = scene.must_acquire(A, IDS)
    scene.compute(lease, IDS, 0, 20)
    scene.commit(lease, IDS, 8)
    scene.cache.flush()
    scene.commit(lease, IDS)
    scene.cache.check_invariants()
    assert scene.matches(A, IDS) == 0
    # the same prompt finds nothing, though the lease still holds its old blocks
    assert scene.run(A, IDS[:12]) == 0
    scene.release(lease)
    scene.cache.check_invariants()
    assert scene.matches(A, IDS) == 12
    assert scene.cache.capacity.pool().free == 13


def test_a_flush_keeps_no_branch_that_nobody_reads() -> None:
    scene = Scene(16)
    scene.run(A, IDS)
    lease = scene.must_acquire(A, IDS[:9])  # holds the first two of five blocks
    assert scene.cache.flush() == 5
    scene.cache.check_invariants()
    assert scene.cache.capacity.pool().leased == 3
    scene.release(lease)
    assert scene.cache.capacity.pool().free == 16


def test_a_detached_lease_keeps_the_blocks_before_it_from_eviction() -> None:
    scene, where = Scene(6), path("pub", "tenant", length=2)
    lease = scene.start(where, IDS)
    scene.cache.flush(namespace=path("tenant").at(0))
    assert scene.cache.capacity.pool().evictable == 0
    assert scene.acquire(B, IDS[:8]) is None
    assert scene.read(lease, 20) == scene.kv(where, IDS)
    scene.cache.check_invariants()
    scene.release(lease)
    assert scene.matches(where, IDS) == 8
    assert scene.acquire(B, tokens(*range(24))) is not None


def test_a_detached_end_is_not_grown_over() -> None:
    scene, where = Scene(16), path("pub", "tenant", length=2)
    old = scene.start(where, IDS[:12])
    scene.cache.flush(namespace=path("tenant").at(0))
    new = scene.start(path("pub"), IDS)  # the same owner continues a prompt in the upper namespace
    scene.cache.check_invariants()
    scene.release(old)
    scene.release(new)
    scene.cache.check_invariants()
    assert scene.matches(path("pub"), IDS) == 20


def test_discard_forgets_what_the_lease_added_and_what_builds_on_it() -> None:
    scene = Scene(32)
    scene.run(A, IDS[:8])
    bad = scene.start(A, IDS[:16])
    later = scene.start(A, IDS)
    scene.discard(bad)
    scene.cache.check_invariants()
    assert scene.matches(A, IDS) == 8
    assert scene.read(later, 20) == scene.kv(A, IDS)
    scene.release(later)
    scene.cache.check_invariants()
    assert scene.cache.capacity.pool().free == 30


@pytest.mark.parametrize("others", [False, True])
def test_discard_forgets_every_step_of_what_the_lease_added(others: bool) -> None:
    """Forget all blocks that a discarded lease added, in however many commits.

    Another lease may begin at the end of one of these commits.
    """
    scene = Scene(32)
    bad = scene.must_acquire(A, IDS[:16])
    for done in range(4, 17, 4):
        scene.compute(bad, IDS, done - 4, done)
        scene.commit(bad, IDS[:16], done)
        if others:
            scene.run(A, tokens(*IDS[:done], 7, 7, 7, 7, 7))
    assert scene.matches(A, IDS[:16]) == 16
    scene.discard(bad)
    assert scene.matches(A, IDS[:16]) == 0
    scene.cache.check_invariants()
    assert scene.cache.capacity.pool().free == 32


def test_discard_of_a_grown_node_spares_what_was_there_before() -> None:
    scene = Scene(16)
    scene.run(A, IDS[:8])
    lease = scene.start(A, tokens(*IDS[:8], 1, 2, 3, 4))
    assert scene.cache.tree.num_nodes == 1
    scene.discard(lease)
    scene.cache.check_invariants()
    assert scene.matches(A, IDS) == 8


def test_discard_of_a_lease_that_added_nothing_is_a_release() -> None:
    scene = Scene(16)
    scene.run(A, IDS)
    scene.discard(scene.must_acquire(A, IDS))
    assert scene.matches(A, IDS) == 20
    scene.discard(scene.must_acquire(B, IDS))
    scene.cache.check_invariants()
    assert scene.cache.capacity.pool().free == 11


# ---- misuse


def test_a_lease_is_released_exactly_once() -> None:
    scene = Scene(8)
    lease = scene.start(A, IDS)
    scene.release(lease)
    before = unchanged(scene)
    with pytest.raises(LeaseError, match="released"):
        scene.release(lease)
    with pytest.raises(LeaseError, match="released"):
        scene.discard(lease)
    with pytest.raises(LeaseError, match="released"):
        scene.commit(lease, IDS)
    with pytest.raises(LeaseError, match="released"):
        scene.cache.extend(lease, 30, now=scene.tick())
    assert unchanged(scene) == before


@pytest.mark.parametrize("computed", [9, 21])
def test_no_more_is_committed_than_is_leased_or_known(computed: int) -> None:
    scene = Scene(8)
    lease = scene.must_acquire(A, IDS[:8])
    with pytest.raises(LeaseError, match=f"{computed} tokens committed, 2 blocks leased"):
        scene.commit(lease, IDS, computed)
    scene.commit(lease, IDS, 8)
    assert scene.matches(A, IDS) == 8


def test_fits_is_about_the_whole_pool() -> None:
    scene = Scene(5)
    scene.start(A, IDS)
    assert scene.cache.fits(20)
    assert not scene.cache.fits(21)


@pytest.mark.parametrize("where", [A, path("pub", "tenant", length=2)])
def test_blocks_are_in_order_of_position(where: NamespacePath) -> None:
    scene = Scene(32)
    scene.run(where, IDS)
    scene.run(where, tokens(*IDS[:14], 1, 2, 3))
    lease = scene.must_acquire(where, tokens(*IDS, 5))
    assert lease.blocks[:5].tolist() == [0, 1, 2, 3, 4]
    assert lease.blocks.dtype == np.int32
    assert scene.cache.extend(lease, 40, now=scene.tick())
    assert len(set(lease.blocks.tolist())) == len(lease.blocks) == 10
