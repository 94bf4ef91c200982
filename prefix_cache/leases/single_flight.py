"""The blocks being computed now, so that N cold requests wait for one prefill.

A sequence whose key another sequence holds waits until a deadline that the engine sets. These keys
decide only who waits, not which block is found. So equal keys of different blocks do no harm.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

H = TypeVar("H", bound=Hashable)


class SingleFlight(Generic[H]):
    """The keys of blocks being computed. The sequence that claimed a key first holds it."""

    def __init__(self) -> None:
        self._holder_of: dict[bytes, H] = {}
        self._keys_of: dict[H, set[bytes]] = {}

    def begin(self, holder: H, keys: Iterable[bytes]) -> None:
        """Claim the unclaimed keys of blocks that `holder` starts to compute."""
        mine = {key for key in keys if self._holder_of.setdefault(key, holder) == holder}
        if mine:
            self._keys_of.setdefault(holder, set()).update(mine)

    def done(self, holder: H, keys: Iterable[bytes]) -> None:
        """Free `holder`'s keys of blocks that are now in the tree or dropped."""
        held = self._keys_of.get(holder)
        if held is None:
            return
        finished = held.intersection(keys)
        for key in finished:
            del self._holder_of[key]
        held -= finished
        if not held:
            del self._keys_of[holder]

    def end(self, holder: H) -> None:
        """Free all keys of `holder`."""
        for key in self._keys_of.pop(holder, ()):
            del self._holder_of[key]

    def holder_of(self, key: bytes) -> H | None:
        """Return the sequence that is computing the block with this key, if any."""
        return self._holder_of.get(key)
