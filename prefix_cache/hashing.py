"""The keys of KV blocks, by which the host and disk tiers find blocks.

    key of block i = digest(namespace of block i | key of block i - 1 | token ids, int32 LE)

The parent of block 0 is 16 zero bytes. Token ids are compared after a lookup by key, so a collision
only costs a miss.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import iter_unpack

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128_digest as xxh3_128_digest  # exported: it computes all keys

from prefix_cache.namespace import NamespacePath

TokenIds = npt.NDArray[np.int32]
Digest = Callable[[bytes], bytes]

KEY_BYTES = 16
ROOT_KEY = bytes(KEY_BYTES)


def block_keys(
    path: NamespacePath,
    token_ids: TokenIds,
    block_size: int,
    *,
    digest: Digest = xxh3_128_digest,
    parent: bytes | None = None,
    first_block: int = 0,
) -> bytes:
    """Return a 16-byte key for each whole KV block of `token_ids`.

    `first_block` is the position of the first of these blocks. `parent` is the key of the block
    before it, or None for block 0. A last block that is not full has no key.
    """
    key = ROOT_KEY if parent is None else parent
    data = token_ids.astype("<i4", copy=False).tobytes()
    step = 4 * block_size
    end = first_block + len(token_ids) // block_size
    keys: list[bytes] = []
    block = first_block
    while block < end:
        namespace, span_end = path.span_at(block)
        run_end = min(end, span_end or end)
        run = memoryview(data)[(block - first_block) * step : (run_end - first_block) * step]
        for (tokens,) in iter_unpack(f"{step}s", run):
            key = digest(namespace + key + tokens)
            keys.append(key)
        block = run_end
    return b"".join(keys)


def index_of(keys: bytes | bytearray, key: bytes) -> int | None:
    """Return the index of the block with this key, or None if no block has it."""
    at = keys.find(key)
    while at > 0 and at % KEY_BYTES:
        at = keys.find(key, at + 1)
    return None if at < 0 else at // KEY_BYTES
