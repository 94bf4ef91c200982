"""The bytes that `block_keys` returns, cut into keys."""

from __future__ import annotations

from prefix_cache.hashing import KEY_BYTES


def split_keys(keys: bytes) -> list[bytes]:
    """Cut the bytes into one key for each block."""
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
