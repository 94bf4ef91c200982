"""An index of the published prefixes: how many leading blocks of a prompt are published.

The prefixes of a scope are sorted by their bytes. The one with the most leading bytes in common
with a prompt is a neighbour of the prompt's own place in that order, so a lookup is a binary
search and two comparisons, however many prefixes there are. Tokens are compared, not hashes.

A prompt that leaves a published prefix half-way shares that half.

Knows: tokens, scopes, whole blocks. Does not know: namespaces, or what the engine holds. It is
read from several threads; one replaces its whole content.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from engine.messages import pack_token_ids
from gateway.state.records import EVERYONE
from gateway.tokenizer import TokenIds

_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One published prefix; `scope` is EVERYONE or a group's id."""

    scope: str
    token_ids: TokenIds


@dataclass(frozen=True, slots=True)
class Match:
    """The first `blocks` blocks of a prompt are published for `scope`."""

    scope: str
    blocks: int  # at least 1


@dataclass(frozen=True, slots=True)
class _Shelf:
    """The prefixes of one scope: whole blocks as bytes, sorted."""

    prefixes: tuple[bytes, ...]
    longest: int  # bytes

    def common_bytes(self, prompt: bytes) -> int:
        wanted = prompt[: self.longest]
        at = bisect_left(self.prefixes, wanted)
        around = self.prefixes[max(at - 1, 0) : at + 1]
        return max((_common_bytes(prefix, wanted) for prefix in around), default=0)


class PublishedIndex:
    """What is published now; empty at first."""

    def __init__(self) -> None:
        self._shelves: tuple[int, dict[str, _Shelf]] = (0, {})

    def renew(self, block_size: int, entries: Iterable[Entry]) -> None:
        """Replace the content by the whole blocks of these entries."""
        by_scope: dict[str, list[bytes]] = {}
        for entry in entries:
            whole = len(entry.token_ids) // block_size * block_size
            by_scope.setdefault(entry.scope, []).append(pack_token_ids(entry.token_ids[:whole]))
        shelves = {
            scope: _Shelf(tuple(sorted(prefixes)), max(map(len, prefixes)))
            for scope, prefixes in by_scope.items()
        }
        self._shelves = (block_size, shelves)

    def match(self, token_ids: TokenIds, group_id: str | None, block_size: int) -> Match | None:
        """The longest run of leading blocks that is published for everyone or for this group.

        None if there is none, or if the index was made for another block size.
        """
        size, shelves = self._shelves
        if size != block_size or not shelves:
            return None
        prompt = pack_token_ids(token_ids)
        scopes = (EVERYONE,) if group_id is None else (EVERYONE, group_id)
        found = [
            Match(scope, shelves[scope].common_bytes(prompt) // (_TOKEN_BYTES * size))
            for scope in scopes
            if scope in shelves
        ]
        best = max(found, key=lambda match: match.blocks, default=None)  # the first of equals
        return best if best is not None and best.blocks else None


def _common_bytes(left: bytes, right: bytes) -> int:
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    ours, others = (np.frombuffer(side, np.uint8, length) for side in (left, right))
    return int((ours != others).argmax())
