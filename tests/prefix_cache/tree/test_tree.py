"""The radix tree finds the longest cached prefix of a path, also after splits and removals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_cache.namespace import NamespacePath
from prefix_cache.tree.edge import Edge
from prefix_cache.tree.node import Node
from prefix_cache.tree.tree import RadixTree
from tests.prefix_cache.support.scene import namespace, path, tokens


def put(tree: RadixTree, where: NamespacePath, *ids: int, first_id: int = 0) -> Node:
    """Add the missing part of `ids` to the tree, splitting nodes as needed; return the last
    node.
    """
    size, array = tree.block_size, tokens(*ids)
    at = tree.walk(where, array)
    node = tree.split(at.node, at.inside) if at.within else at.node
    while node.end < len(ids) // size:
        end = min(where.span_at(node.end)[1] or len(ids), len(ids) // size)
        blocks = np.arange(first_id + node.end, first_id + end, dtype=np.int32)
        edge = Edge(array[node.end * size : end * size], blocks, bytes(16 * len(blocks)), size)
        node = tree.add(node, where.at(node.end), edge, owner="me", now=0.0)
    return node


def length(tree: RadixTree, where: NamespacePath, *ids: int) -> int:
    return tree.walk(where, tokens(*ids)).num_blocks


def test_an_empty_tree_finds_nothing() -> None:
    tree = RadixTree(2)
    assert length(tree, path("a"), 1, 2) == 0
    assert tree.partial(tree.walk(path("a"), tokens(1)), path("a"), tokens(1)) is None
    assert (tree.num_nodes, tree.depth) == (0, 0)


def test_whole_blocks_are_found() -> None:
    tree = RadixTree(2)
    put(tree, path("a"), 1, 2, 3, 4, 5, 6)
    assert [length(tree, path("a"), *range(1, n + 1)) for n in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert length(tree, path("a"), 1, 2, 3, 9, 5, 6) == 1
    assert length(tree, path("b"), 1, 2, 3, 4, 5, 6) == 0


def test_paths_share_up_to_where_they_part() -> None:
    tree = RadixTree(2)
    put(tree, path("a"), 1, 2, 3, 4, 5, 6)
    put(tree, path("a"), 1, 2, 3, 4, 7, 8, 9, 9)
    assert (tree.num_nodes, tree.depth) == (3, 2)
    assert length(tree, path("a"), 1, 2, 3, 4, 5, 6) == 3
    assert length(tree, path("a"), 1, 2, 3, 4, 7, 8, 9, 9) == 4


def test_an_owner_s_nodes_are_found_without_a_walk() -> None:
    tree = RadixTree(2)
    lower = put(tree, path("a"), 1, 2, 3, 4, 5, 6)
    put(tree, path("b"), 1, 2)
    assert set(tree.owned["me"]) == set(tree.nodes())
    upper = tree.split(lower, 1)
    tree.give(lower, "anna")
    assert list(tree.owned["anna"]) == [lower]
    assert upper in tree.owned["me"]
    tree.left(lower)
    assert set(tree.owned) == {"me"}


def test_splitting_keeps_the_lower_half_the_same_object() -> None:
    tree = RadixTree(2)
    lower = put(tree, path("a"), 1, 2, 3, 4, 5, 6, first_id=10)
    lower.leases = 1
    upper = tree.split(lower, 2)
    assert (upper.start, upper.end, lower.start, lower.end) == (0, 2, 2, 3)
    assert upper.edge.block_ids.tolist() == [10, 11]
    assert lower.edge.block_ids.tolist() == [12]
    assert (upper.leases, upper.held_children, lower.leases) == (0, 1, 1)
    assert lower.parent is upper
    assert list(tree.root.children.values()) == [upper]
    assert length(tree, path("a"), 1, 2, 3, 4, 5, 6) == 3


def test_an_edge_stops_where_the_path_changes_namespace() -> None:
    tree = RadixTree(2)
    put(tree, path("pub", "a"), 1, 2, 3, 4, 5, 6)
    assert [node.namespace for node in tree.nodes()] == [namespace("pub"), namespace("a")]
    assert length(tree, path("pub", "a"), 1, 2, 3, 4, 5, 6) == 3
    assert length(tree, path("pub", "b"), 1, 2, 3, 4, 5, 6) == 1
    assert length(tree, path("pub"), 1, 2, 3, 4, 5, 6) == 1
    assert length(tree, path("a"), 1, 2, 3, 4, 5, 6) == 0


def test_a_walk_stops_within_an_edge_where_its_own_path_changes_namespace() -> None:
    tree = RadixTree(2)
    put(tree, path("pub"), 1, 2, 3, 4)
    at = tree.walk(path("pub", "a"), tokens(1, 2, 3, 4))
    assert (at.num_blocks, at.within) == (1, True)
    copied = tree.partial(at, path("pub", "a"), tokens(1, 2, 3, 9))
    assert copied is not None  # a part of a block may be copied within its own namespace
    assert copied.num_tokens == 1
    assert tree.partial(at, path("other", "a"), tokens(1, 2, 3, 9)) is None
    put(tree, path("pub", "a"), 1, 2, 3, 4)
    assert length(tree, path("pub", "a"), 1, 2, 3, 4) == 2
    assert length(tree, path("pub"), 1, 2, 3, 4) == 2


def test_equal_neighbouring_spans_are_one() -> None:
    tree = RadixTree(2)
    twice = NamespacePath(((0, namespace("a")), (1, namespace("a"))))
    put(tree, path("a"), 1, 2, 3, 4)
    assert length(tree, twice, 1, 2, 3, 4) == 2


def partial_tokens(tree: RadixTree, where: NamespacePath, *ids: int) -> tuple[int, int] | None:
    """Return the number of leading tokens of the next block that a block shares, and that block's
    id.
    """
    found = tree.partial(tree.walk(where, tokens(*ids)), where, tokens(*ids))
    return None if found is None else (found.num_tokens, found.block_id)


def test_the_partial_match_is_the_longest_of_all_children() -> None:
    tree = RadixTree(4)
    for first_id, ids in enumerate([(1, 2, 3, 4), (1, 2, 9, 9), (1, 5, 5, 5), (7, 7, 7, 7)]):
        put(tree, path("a"), *ids, first_id=first_id)
    assert partial_tokens(tree, path("a"), 1, 2, 3, 9) == (3, 0)
    assert partial_tokens(tree, path("a"), 1, 2, 9) == (3, 1)
    assert partial_tokens(tree, path("a"), 1, 5, 6) == (2, 2)
    assert partial_tokens(tree, path("a"), 7, 8, 8, 8) == (1, 3)
    assert partial_tokens(tree, path("a"), 8, 7, 7, 7) is None
    assert partial_tokens(tree, path("b"), 1, 2, 3, 9) is None


@pytest.mark.parametrize("switch", [4, 5, 6, 7])
@pytest.mark.parametrize("is_within", [False, True])
def test_of_a_namespace_that_ends_no_token_after_the_switch_is_read(
    switch: int, is_within: bool
) -> None:
    """Read no token of the other namespace after the switch, since an adapter computes those
    tokens.

    Tested within an edge, and among children.
    """
    tree, ids = RadixTree(4), (1, 2, 3, 4, 5, 6, 7, 8)
    if not is_within:
        put(tree, path("a"), 1, 2, 3, 4)
        put(tree, path("a"), 1, 2, 3, 4, 9, 9, 9, 9, first_id=10)
    put(tree, path("a"), *ids, first_id=20)
    where = path("a", "b")
    found = partial_tokens(tree, replace(where, switch=switch), *ids)
    assert found == (None if switch == 4 else (switch - 4, 21))
    assert partial_tokens(tree, where, *ids) == (4, 21)  # positive control
    put(tree, where, *ids, first_id=30)
    own = partial_tokens(tree, replace(where, switch=switch), *ids[:7], 9)
    assert own is not None
    assert own[0] == 3  # the adapter's own block may be read after the switch too


def test_a_walk_that_ends_within_an_edge_has_its_partial_match_there() -> None:
    tree = RadixTree(4)
    put(tree, path("a"), 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, first_id=5)
    assert partial_tokens(tree, path("a"), 1, 1, 1, 1, 2, 2, 9) == (2, 6)
    assert partial_tokens(tree, path("a"), 1, 1, 1, 1, 9) is None
    assert partial_tokens(tree, path("a"), 1, 1, 1, 1) is None


BLOCK = st.tuples(*[st.integers(0, 2) | st.sampled_from([255, 256, 65536, 2**31 - 1])] * 3)


@given(st.sets(st.tuples(st.sampled_from("ab"), BLOCK), max_size=30), BLOCK)
def test_the_neighbours_hold_the_longest_common_prefix(
    blocks: set[tuple[str, tuple[int, ...]]], wanted: tuple[int, ...]
) -> None:
    tree, known = RadixTree(3), wanted[:2]  # shorter than a block, as after a match
    for name, block in blocks:
        put(tree, path(name), *block)
    best = max((common(known, block) for name, block in blocks if name == "a"), default=0)
    found = partial_tokens(tree, path("a"), *known)
    assert (found[0] if found else 0) == best


def common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), len(left))


PROMPT = st.lists(st.integers(0, 1), max_size=16)


@given(st.lists(PROMPT, max_size=12), PROMPT, st.sampled_from([("a",), ("b",), ("p", "a")]))
def test_a_walk_finds_what_a_set_of_prefixes_holds(
    prompts: list[list[int]], query: list[int], names: tuple[str, ...]
) -> None:
    tree, plain = RadixTree(2), set[tuple[object, ...]]()
    for index, prompt in enumerate(prompts):
        where = path(*[("a",), ("p", "a"), ("p", "b")][index % 3])
        put(tree, where, *prompt)
        plain |= {chain(where, prompt[: 2 * n]) for n in range(1, len(prompt) // 2 + 1)}
    where, best = path(*names), 0
    while best < len(query) // 2 and chain(where, query[: 2 * best + 2]) in plain:
        best += 1
    assert length(tree, where, *query) == best
    assert tree.num_nodes == len(list(tree.nodes()))


def chain(where: NamespacePath, ids: list[int]) -> tuple[object, ...]:
    return tuple((where.at(i // 2), ids[i], ids[i + 1]) for i in range(0, len(ids) - 1, 2))


def test_unlinking_takes_the_subtree_and_spares_an_equal_one() -> None:
    tree = RadixTree(2)
    old = put(tree, path("a"), 1, 2, 3, 4)
    tree.unlink(old)
    assert length(tree, path("a"), 1, 2, 3, 4) == 0
    put(tree, path("a"), 1, 2, 3, 4)
    tree.unlink(old)
    assert length(tree, path("a"), 1, 2, 3, 4) == 2


@pytest.mark.parametrize("blocks", [1, 7])
def test_the_last_key_is_the_key_of_the_last_block(blocks: int) -> None:
    tree = RadixTree(2)
    assert tree.root.last_key == bytes(16)
    keys = b"".join(bytes([n]) * 16 for n in range(blocks))
    edge = Edge(np.zeros(2 * blocks, np.int32), np.arange(blocks, dtype=np.int32), keys, 2)
    node = tree.add(tree.root, namespace("a"), edge, owner="me", now=0.0)
    assert node.last_key == bytes([blocks - 1]) * 16
