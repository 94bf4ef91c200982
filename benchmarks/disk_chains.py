"""Fills a disk tier with prefixes as conversations would leave them, for other benchmarks.

There are system prompts that many conversations share, and conversations that continue them; some
were hit again, most never. The content of the blocks is noise, which nothing reads.

Knows: chains of records, and how they are written. Does not know: what is measured with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import iter_unpack

import numpy as np
import torch

from prefix_cache.hashing import KEY_BYTES, ROOT_KEY, block_keys
from prefix_cache.namespace import NAMESPACE_BYTES, Namespace, NamespacePath
from storage.disk.config import DiskConfig
from storage.disk.tier import DiskTier
from storage.disk.wire import Outcome, Segment
from storage.host_pool import HostPool
from storage.move import Record

BLOCK_SIZE = 16  # tokens
TENANTS = 20
TRUNK_BLOCKS = 60  # of a tenant's system prompt
CONVERSATION_BLOCKS = (10, 400)
AT_ONCE = 32  # blocks being written


def chains(num_blocks: int, seed: int = 0) -> Iterator[Record]:
    """`num_blocks` records, parents before children, as a cache would have written them."""
    random = np.random.default_rng(seed)
    trunks: dict[int, tuple[NamespacePath, bytes]] = {}
    left = num_blocks
    while left:
        tenant = int(random.integers(TENANTS))
        if tenant in trunks:
            length = int(random.integers(*CONVERSATION_BLOCKS))
            hits = int(random.geometric(0.6)) - 1
            path, parent = trunks[tenant]
            first = TRUNK_BLOCKS
        else:
            namespace = Namespace(tenant.to_bytes(NAMESPACE_BYTES, "big"))
            path, parent, first = NamespacePath.single(namespace), ROOT_KEY, 0
            length, hits = TRUNK_BLOCKS, 1000 - tenant
        run = list(_run(path, parent, first, min(length, left), hits, random))
        if tenant not in trunks:
            trunks[tenant] = path, run[-1].key
        left -= len(run)
        yield from run


def _run(
    path: NamespacePath,
    parent: bytes,
    first: int,
    length: int,
    hits: int,
    random: np.random.Generator,
) -> Iterator[Record]:
    """`length` blocks behind the one of key `parent`."""
    ids = random.integers(0, 128_000, length * BLOCK_SIZE).astype(np.int32)
    keys = block_keys(path, ids, BLOCK_SIZE, parent=parent, first_block=first)
    blocks = ids.astype("<i4").reshape(length, BLOCK_SIZE)
    namespace = path.at(first)
    for (key,), tokens in zip(iter_unpack(f"{KEY_BYTES}s", keys), blocks, strict=True):
        yield Record(key, parent, namespace, f"flow {namespace.hex()}", tokens.tobytes(), hits)
        parent = key


def fill(config: DiskConfig) -> int:
    """Write a record into every slot; returns how many there are."""
    device = torch.device("cpu")
    host = HostPool(AT_ONCE, config.block_bytes, device)
    host.tensor.random_()
    disk = DiskTier(config, host, device)
    waiting = 0
    for slot, record in enumerate(chains(disk.num_blocks)):
        disk.write(slot, record, Segment.HOST, slot % AT_ONCE)
        waiting += 1
        while waiting >= AT_ONCE or (waiting and slot + 1 == disk.num_blocks):
            waiting -= _ended(disk)
    disk.close()
    host.close()
    return disk.num_blocks


def _ended(disk: DiskTier) -> int:
    disk.wait(0.05)
    ended = disk.poll()
    if any(end.outcome is not Outcome.DONE for end in ended):
        raise RuntimeError("a block was not written")
    return len(ended)
