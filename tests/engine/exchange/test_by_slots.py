"""A prompt is copied by slots between the pools of two engines, in a few messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.exchange.block_memory import memory_of
from engine.exchange.exchange import Exchange, ExchangeThreads
from engine.exchange.fetching.client import BlockClient
from engine.exchange.peer_pool import HANDLE_BYTES, PeerPool, Slots, this_host
from engine.exchange.serving.sending import FIRST_SLOTS, SLOTS_AT_ONCE
from engine.exchange.serving.server import BlockServer
from engine.exchange.wire import PoolHandle
from engine.link.engine_end.waker import Waker
from engine.link.messages import FetchSource, SamplingParams
from engine.sequences.sequence import Sequence
from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from storage.copies import CopyEvent, Passed
from storage.pools.device_pool import DevicePool
from storage.tier_mover import block_bytes_of
from tests.doubles.constant_rate import NOTHING_MEASURED
from tests.doubles.layouts import alike_layers
from tests.doubles.waiting import wait_for

SIZE, SHARED = 4, 100
WHOLE = SHARED + SLOTS_AT_ONCE + 30  # number of blocks
A, B = Namespace(b"a" * 16), Namespace(b"b" * 16)
PATH = NamespacePath(((0, A), (SHARED, B)))
TOKENS = (np.arange(WHOLE * SIZE + 1, dtype=np.int32) * 7) % 1000
WAIT_S = 30.0


@dataclass
class InMemory:
    """A `PeerPools` within one process, which is also the `PeerPool` of the only other pool."""

    theirs: Tensor
    ours: Tensor
    copied: list[int] = field(default_factory=list)  # number of blocks in each call

    def host_of(self, where: str) -> bytes | None:
        del where
        return this_host()

    def follow(self, event: CopyEvent) -> None:
        del event

    def open(self, where: str, handle: PoolHandle) -> PeerPool:
        del where, handle
        return self

    def copy(self, sources: Slots, targets: Slots) -> CopyEvent:
        self.copied.append(len(sources))
        self.ours[torch.from_numpy(targets)] = self.theirs[torch.from_numpy(sources)]
        return Passed()


class Engine:
    """An engine's cache and exchange, and a pool that holds a prompt in scattered blocks."""

    def __init__(self, where: str | None = None, theirs: DevicePool | None = None) -> None:
        """Listen at the address `where`, if given; copy from the pool `theirs`, if given."""
        self.pool = DevicePool(
            alike_layers(1, 1, 4, "float32", SIZE), 2 * WHOLE, torch.device("cpu")
        )
        self.cache = PrefixCache(num_blocks=2 * WHOLE, block_size=SIZE)
        memory, waker = memory_of(self.pool), Waker()
        handle = PoolHandle(bytes(HANDLE_BYTES), 0, self.pool.num_blocks)
        server = None
        if where is not None:
            server = BlockServer(where, memory, waker.wake, pool=handle)
        self.pools = None
        if theirs is not None:
            self.pools = InMemory(block_bytes_of(theirs), block_bytes_of(self.pool))
        client = BlockClient(memory, bytes(32), waker.wake, pools=self.pools)
        self.opened = ExchangeThreads(waker, client, server)
        self.exchange = Exchange(
            self.cache, NOTHING_MEASURED, bytes(32), memory.block_bytes, self.opened
        )

    def put(self) -> list[bytes]:
        """Cache the prompt; return the bytes of its blocks."""
        lease = self.cache.acquire(PATH, TOKENS, owner="flow", now=0.0)
        assert lease is not None
        np.random.default_rng(3).shuffle(lease.blocks[lease.num_shared :])
        blocks = block_bytes_of(self.pool)
        for position, block in enumerate(lease.blocks[:WHOLE].tolist()):
            blocks[block] = torch.arange(blocks.shape[1]).mul(position + 1).to(torch.uint8)
        keys = block_keys(PATH, TOKENS, SIZE)
        self.cache.commit(lease, TOKENS, WHOLE * SIZE, keys, now=0.0)
        self.cache.release(lease, now=0.0)
        return self.read()

    def read(self) -> list[bytes]:
        """Find the prompt in the tree; return the bytes of its blocks."""
        lease = self.cache.read(PATH, TOKENS, owner="flow", now=0.0)
        assert lease is not None
        pool = block_bytes_of(self.pool).numpy()
        found = [pool[block].tobytes() for block in lease.blocks.tolist()]
        self.cache.release(lease, now=0.0)
        return found


def sequence(where: str) -> Sequence:
    return Sequence(
        request_id="one",
        client=b"",
        flow="flow",
        weight=1.0,
        path=PATH,
        block_keys=block_keys(PATH, TOKENS, SIZE),
        sampling=SamplingParams(max_tokens=1),
        prompt_len=len(TOKENS),
        arrived=0.0,
        tokens=TOKENS,
        num_tokens=len(TOKENS),
        loads="always",
        source=FetchSource(where, len(TOKENS)),
    )


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(str(tmp_path / "x.sock"))
    with closing(engine.opened):
        yield engine


@pytest.fixture
def here(there: Engine) -> Iterator[Engine]:
    engine = Engine(theirs=there.pool)
    with closing(engine.opened):
        yield engine


def test_all_blocks_come_in_few_messages_each_of_one_namespace(there: Engine, here: Engine) -> None:
    wanted = there.put()
    assert len(set(wanted)) > WHOLE // 2, "the control: blocks differ"
    assert there.opened.address is not None
    one = sequence(there.opened.address)
    lease = here.cache.acquire(PATH, TOKENS, owner="flow", now=0.0)
    assert lease is not None
    one.hold(lease, 1)
    here.exchange.begin(one, time.monotonic(), 0)

    def has_come() -> bool:
        there.exchange.turn(lambda _: None, time.monotonic())
        for progress in here.exchange.advance(time.monotonic()):
            keys = one.block_keys
            here.cache.commit(lease, TOKENS, progress.end, keys, now=0.0, is_written=False)
        return not one.is_fetching

    wait_for(has_come, WAIT_S, every_s=0.001)
    here.cache.release(lease, now=0.0)
    assert here.read() == wanted
    assert here.pools is not None
    assert here.pools.copied == [FIRST_SLOTS, SHARED - FIRST_SLOTS, SLOTS_AT_ONCE, 30]
    assert here.exchange.stats().fetched["device"].blocks == WHOLE
    here.cache.check_invariants()
