"""The host tier's memory, made ready by a thread while the model is loaded.

Clearing 31 GiB and pinning them takes about as long as loading a model and recording its steps,
and neither needs the other: how large the tier is follows from the config, a block's bytes and
the memory that is free before. What a thread has made belongs to whoever takes it, once; what
nobody takes, because the model cannot be opened, is given back.

Knows: when memory is asked for, and whose it is. Does not know: what lies in it, or the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import Protocol

import torch

from engine.config import EngineConfig
from engine.pool_size import OPENING_BYTES, host_blocks
from storage.free_memory import host_free_bytes
from storage.host_pool import HostPool


class NewHostPool(Protocol):
    """Makes a pool; raises PoolDoesNotFit. `available`: bytes that may be taken."""

    def __call__(  # noqa: D102
        self, num_blocks: int, block_bytes: int, device: torch.device, available: int
    ) -> HostPool: ...


class HostAhead:
    """A host pool on its way, made by a thread.

    Concurrency: the thread does nothing but make the pool, and is done with it before it is
    handed over. `take` and `close` are for the one owner thread.
    """

    def __init__(self, make: Callable[[], HostPool | None]) -> None:
        """Begin at once; None where there is to be no host tier."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="host-tier")
        self._made = self._thread.submit(make)
        self._taken = False

    def take(self) -> HostPool | None:
        """The pool, which is the caller's to close from now on. Waits until it is ready.

        Raises PoolDoesNotFit where the memory is not there.
        """
        pool = self._made.result()
        self._taken = True
        return pool

    def close(self) -> None:
        """Give the memory back unless it was taken. Waits for the thread; may be repeated."""
        self._thread.shutdown()
        if self._taken or self._made.exception() is not None:
            return
        pool = self._made.result()
        if pool is not None:
            pool.close()


@contextmanager
def host_ahead(
    config: EngineConfig,
    block_bytes: int,
    device: torch.device,
    new_pool: NewHostPool = HostPool,
) -> Iterator[HostAhead | None]:
    """The host tier of `config` on its way; on leaving it is given back unless it was taken.

    None on a CPU: there weights and pool lie in the same memory, so what is left for the tier is
    known only behind them.
    """
    if device.type != "cuda":
        yield None
        return
    free = max(host_free_bytes() - OPENING_BYTES, 0)
    num_blocks = host_blocks(config, block_bytes, on_cuda=True, free=free)
    with closing(HostAhead(partial(_made, new_pool, num_blocks, block_bytes, device, free))) as it:
        yield it


def _made(
    new_pool: NewHostPool, num_blocks: int, block_bytes: int, device: torch.device, free: int
) -> HostPool | None:
    return new_pool(num_blocks, block_bytes, device, free) if num_blocks else None
