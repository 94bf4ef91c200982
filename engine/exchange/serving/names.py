"""The lookup of this engine's cached namespaces by the hashed names that engines exchange."""

from __future__ import annotations

from engine.exchange.seal import name_of
from prefix_cache.namespace import Namespace, NamespacePath
from prefix_cache.tree.tree import RadixTree

# The ratio of stored names to cached namespaces above which all names are dropped and rebuilt.
FORGET = 2


class NamespaceNames:
    """The namespaces by their hashed names. Used by one thread only."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._by_name: dict[bytes, Namespace] = {}
        self._named: set[Namespace] = set()

    def path(self, spans: tuple[tuple[int, bytes], ...]) -> tuple[NamespacePath, int | None] | None:
        """Return a prompt's cached namespaces, and the first block whose namespace is not cached.

        The block is None if all namespaces are cached. Return None if not even the first namespace
        is cached.
        """
        known: list[tuple[int, Namespace]] = []
        for start, name in spans:
            namespace = self._find(name)
            if namespace is None:
                return (NamespacePath(tuple(known)), start) if known else None
            known.append((start, namespace))
        return NamespacePath(tuple(known)), None

    def _find(self, name: bytes) -> Namespace | None:
        if name not in self._by_name:
            self._learn()
        return self._by_name.get(name)

    def _learn(self) -> None:
        here = self._tree.tops
        if len(self._named) > FORGET * len(here):
            self._by_name, self._named = {}, set()
        for namespace in [one for one in here if one not in self._named]:
            self._by_name[name_of(namespace)] = namespace
            self._named.add(namespace)
