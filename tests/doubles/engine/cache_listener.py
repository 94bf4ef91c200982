"""A listener that applies a cache's events literally, key by key, for comparison with an index."""

from __future__ import annotations

from engine.link.cache_events import CacheEvents, Cleared, Removed, TierName

KEY_BYTES = 16


def split_keys(keys: bytes) -> list[bytes]:
    """Return the keys one by one."""
    assert len(keys) % KEY_BYTES == 0
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


class CacheListener:
    """Blocks by their keys, with the tier of each block."""

    def __init__(self) -> None:
        self.held: dict[bytes, TierName] = {}
        self.kinds: list[str] = []

    def hear(self, events: CacheEvents) -> None:
        for change in events.changes:
            self.kinds.append(type(change).__name__)
            if isinstance(change, Cleared):
                self.held.clear()
            elif isinstance(change, Removed):
                for key in split_keys(change.keys):
                    self.held.pop(key, None)
            else:
                self.held.update(dict.fromkeys(split_keys(change.keys), change.tier))
