"""Waiting prompts, whose updated matches are compared with walks from the tree's root."""

from __future__ import annotations

from collections import Counter
from random import Random

from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import TokenIds
from prefix_cache.namespace import NamespacePath
from prefix_cache.tree.match import PrefixMatch, Whereabouts
from prefix_cache.tree.node import Node

MOST = 4


class FollowedPrompts:
    """A set of prompts that are looked up repeatedly. `seen` counts the cases that occurred."""

    def __init__(self, random: Random) -> None:
        self._cache: PrefixCache | None = None
        self._random = random
        self._waiting: list[tuple[NamespacePath, TokenIds, PrefixMatch]] = []
        self.seen = Counter[str]()

    def add(self, cache: PrefixCache, path: NamespacePath, ids: TokenIds) -> None:
        if len(self._waiting) == MOST:
            self._waiting.pop(self._random.randrange(MOST))
        self._waiting.append((path, ids, cache.tree.match(path, ids)))

    def check(self, cache: PrefixCache) -> None:
        if cache is not self._cache:  # after a restart no prompt waits
            self._cache, self._waiting = cache, []
        for index, (path, ids, before) in enumerate(self._waiting):
            self.seen["gone" if not before.holds else "held"] += 1
            self.seen["split"] += before.holds and not before.is_in_place
            wanted = ids[: self._random.randint(len(ids) // 2, len(ids))]
            followed, fresh = cache.tree.match(path, wanted, before), cache.tree.match(path, ids)
            self.seen["went on"] += followed.at.num_blocks > before.at.num_blocks
            assert told(followed) == told(cache.tree.match(path, wanted))
            whole = len(wanted) // cache.block_size
            assert told(fresh.first(whole)) == told(followed)
            if self._random.random() < 0.5:
                self._waiting[index] = (path, ids, cache.tree.match(path, ids, before))


def told(match: PrefixMatch) -> tuple[Node, int, int, Whereabouts]:
    at = match.at
    return at.node, at.inside, at.num_blocks, match.found
