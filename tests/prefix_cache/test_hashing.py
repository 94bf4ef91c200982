"""Block keys form a chain: each key depends on its block and on everything before the block."""

from __future__ import annotations

import numpy as np
import pytest
from xxhash import xxh3_128_digest

from prefix_cache.hashing import KEY_BYTES, block_keys, index_of
from tests.doubles.gateway.keys import split_keys
from tests.prefix_cache.support.scene import ConstantDigest, namespace, path, tokens


def test_keys_are_the_chain_the_docstring_says() -> None:
    where = path("pub", "tenant")
    first = xxh3_128_digest(namespace("pub") + bytes(16) + bytes([1, 0, 0, 0, 2, 0, 0, 0]))
    second = xxh3_128_digest(namespace("tenant") + first + bytes([3, 0, 0, 0, 255, 255, 0, 0]))
    assert block_keys(where, tokens(1, 2, 3, 65535), 2) == first + second


@pytest.mark.parametrize(("length", "blocks"), [(0, 0), (1, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_only_whole_blocks_have_keys(length: int, blocks: int) -> None:
    keys = block_keys(path("a"), np.arange(length, dtype=np.int32), 4)
    assert len(keys) == blocks * KEY_BYTES


def test_a_key_depends_on_everything_before_it() -> None:
    base = block_keys(path("a"), tokens(1, 2, 3, 4), 2)
    assert block_keys(path("a"), tokens(1, 2, 3, 4), 2) == base
    for other in (
        block_keys(path("a"), tokens(9, 2, 3, 4), 2),
        block_keys(path("a"), tokens(1, 2, 3, 9), 2),
        block_keys(path("b"), tokens(1, 2, 3, 4), 2),
        block_keys(path("b", "a"), tokens(1, 2, 3, 4), 2),
    ):
        assert other[KEY_BYTES:] != base[KEY_BYTES:]


def test_a_prefix_has_the_keys_of_the_whole() -> None:
    ids = np.arange(100, dtype=np.int32)
    whole = block_keys(path("pub", "group", "tenant", length=3), ids, 4)
    part = block_keys(path("pub", "group", "tenant", length=3), ids[:50], 4)
    assert whole.startswith(part)


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_chain_can_be_taken_up_anywhere(cut: int) -> None:
    where, ids = path("pub", "group", "tenant", length=3), np.arange(40, dtype=np.int32)
    head = block_keys(where, ids[: cut * 4], 4)
    tail = block_keys(where, ids[cut * 4 :], 4, parent=head[-KEY_BYTES:], first_block=cut)
    assert head + tail == block_keys(where, ids, 4)


def test_the_digest_can_be_another() -> None:
    keys = split_keys(block_keys(path("a"), tokens(1, 2, 3, 4), 2, digest=ConstantDigest()))
    assert keys == [b"same for all...!"] * 2


def test_the_order_of_bytes_is_the_same_everywhere() -> None:
    ids = tokens(1, 2, 3, 70000)
    assert block_keys(path("a"), ids.astype(">i4"), 2) == block_keys(path("a"), ids, 2)


def test_a_key_is_found_where_a_block_has_it_and_not_across_two() -> None:
    keys = b"".join(bytes([number]) * KEY_BYTES for number in range(3))
    assert [index_of(keys, bytes([number]) * KEY_BYTES) for number in range(4)] == [0, 1, 2, None]
    across = keys[KEY_BYTES // 2 : KEY_BYTES // 2 + KEY_BYTES]
    assert index_of(keys, across) is None
    assert index_of(keys + across, across) == 3
    assert index_of(b"", across) is None
