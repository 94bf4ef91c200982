"""The names of tree nodes, with which operators query the children of a node.

Nodes are numbered in the order in which they were first shown, so names do not reveal content. Each
name begins with the engine's id, so that a name from an earlier start is not known here. A name is
valid while its node is in the tree. Only the last MOST names are remembered.
"""

from __future__ import annotations

import itertools
from weakref import WeakKeyDictionary, ref

from prefix_cache.namespace import Namespace
from prefix_cache.tree.node import Node

MOST = 20_000


class NodeIds:
    """The names of one engine's nodes. Used by one thread only."""

    def __init__(self, engine_id: str) -> None:
        self._start = engine_id[:8]
        self._numbers = itertools.count(1)
        self._of_nodes: WeakKeyDictionary[Node, str] = WeakKeyDictionary()
        self._of_namespaces: dict[Namespace, str] = {}
        self._named: dict[str, ref[Node] | Namespace] = {}

    def of_node(self, node: Node) -> str:
        """Return the node's name."""
        name = self._of_nodes.get(node)
        if name is None or name not in self._named:
            name = self._of_nodes[node] = self._new(ref(node))
        return name

    def of_namespace(self, namespace: Namespace) -> str:
        """Return the namespace's name."""
        name = self._of_namespaces.get(namespace)
        if name is None:
            name = self._of_namespaces[namespace] = self._new(namespace)
        return name

    def named(self, name: str) -> Node | Namespace | None:
        """Return the node or namespace with this name, or None if it is not in the tree."""
        found = self._named.get(name)
        if not isinstance(found, ref):
            return found
        node = found()
        return node if node is not None and node.attached else None

    def _new(self, what: ref[Node] | Namespace) -> str:
        if len(self._named) >= MOST:
            self._forget(next(iter(self._named)))
        name = f"{self._start}-{next(self._numbers)}"
        self._named[name] = what
        return name

    def _forget(self, name: str) -> None:
        found = self._named.pop(name)
        if not isinstance(found, ref):
            self._of_namespaces.pop(found, None)
