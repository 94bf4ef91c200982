"""Continuations: the tokens that follow a prefix in the tree.

Continuations serve as drafts. Reading drafts does not count as a use of blocks. So no node is
split, refreshed, counted or held. At each block, the search continues in the path's namespace for
that block, or in the namespace of the node (as `RadixTree.partial` does). So the search reads only
tokens that a request with this path could read. The result must not show how often other tenants
used shared nodes. So only nodes of the path's last namespace are compared by use. Among published
nodes, the first by content is chosen.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from prefix_cache.hashing import TokenIds
from prefix_cache.namespace import NamespacePath
from prefix_cache.tree.edge import TOKEN_BYTES
from prefix_cache.tree.node import Node
from prefix_cache.tree.tree import RadixTree

MOST_CHILDREN = 32


def continuation(
    tree: RadixTree, path: NamespacePath, tokens: TokenIds, start: Node, most: int
) -> tuple[TokenIds, Node] | None:
    """Return up to `most` tokens that follow `tokens` in the tree, int32, and their last node.

    While that node is attached and not trimmed, all of these tokens are in the tree. `start` is an
    attached node on the path, as in `RadixTree.walk`. Of several children, the reader's own child
    with the most uses is followed. Returns None if the tree has no token after `tokens`.
    """
    at = tree.walk(path, tokens, start)
    size = tree.block_size
    rest = tokens[at.num_blocks * size :].tobytes()
    if len(rest) >= size * TOKEN_BYTES:
        return None  # the tokens' next block is not in the tree
    if at.within:
        node, skip = at.node, at.inside * size
    else:
        child = _next(at.node, path, rest)
        if child is None:
            return None
        node, skip = child, 0
    found = node.edge.tokens_from(skip, most + len(rest) // TOKEN_BYTES)
    if not found.startswith(rest):
        return None
    found = found[len(rest) :]
    while len(found) < most * TOKEN_BYTES:
        child = _next(node, path, b"")
        if child is None:
            break
        node, found = child, found + child.edge.tokens_from(0, most - len(found) // TOKEN_BYTES)
    return (np.frombuffer(found, np.int32), node) if found else None


def _next(node: Node, path: NamespacePath, beginning: bytes) -> Node | None:
    if not node.children:
        return None
    end = node.end
    own = path.last
    namespaces = {path.at(end), node.namespace} if end else {path.at(0)}
    if own in namespaces:
        found = islice(node.children.beginning(own + beginning), MOST_CHILDREN)
        most_used = max(found, key=_use, default=None)
        if most_used is not None:
            return most_used
    shared = (
        child
        for namespace in namespaces - {own}
        for child in islice(node.children.beginning(namespace + beginning), MOST_CHILDREN)
    )
    return min(shared, key=_content, default=None)


def _use(node: Node) -> tuple[int, float, bytes]:
    return node.hits, node.last_used, node.first_key


def _content(node: Node) -> bytes:
    return node.first_key
