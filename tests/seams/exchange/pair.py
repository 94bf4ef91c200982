"""Two engines with one checkpoint in this process, stepped in turn. One fetches from the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from engine.config import EngineConfig
from engine.exchange.fetching.fetch import Patience
from engine.link.messages import FetchSource, SamplingParams
from engine.link.stats.engine_stats import FetchStats
from engine.link.tcp.curve import LinkKey
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from storage.tier_mover import block_bytes_of
from tests.seams.support.real_engine import Bounds, ExchangeAt, RealEngine, as_it_is

SIZE = 16
BOUNDS = Bounds(num_blocks=48, block_size=SIZE, max_batch_tokens=64, max_running=4)
PROMPT = tuple((13 * i * i + 7 * i + 5) % 50 + 5 for i in range(11 * SIZE + 5))
WHOLE = 11  # blocks of the prompt
A, B = Namespace(b"a" * 16), Namespace(b"b" * 16)
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
PATIENT = Patience(least=60.0, unmeasured=60.0, stream=60.0)  # long time limits, for a busy machine
GIVE_UP_S = 120.0


def blocks_of(engine: RealEngine, prompt: Sequence[int], namespace: Namespace) -> list[bytes]:
    """Return the bytes of a prompt's blocks on the engine's device."""
    path, ids = NamespacePath.single(namespace), np.array(prompt, np.int32)
    lease = engine.cache.read(path, ids, owner="", now=0.0)
    if lease is None:
        return []
    pool = block_bytes_of(engine.pool).cpu().numpy()
    found = [pool[block].tobytes() for block in lease.blocks.tolist()]
    engine.cache.release(lease, now=0.0)
    return found


def keys_of(prompt: Sequence[int], namespace: Namespace) -> bytes:
    return block_keys(NamespacePath.single(namespace), np.array(prompt, np.int32), SIZE)


@dataclass
class Pair:
    """Two engines: `there` computes prompts, and `here` fetches their blocks."""

    there: RealEngine
    here: RealEngine
    where: str

    def source(self, request_id: str | None = None, *, only: bool = False) -> FetchSource:
        return FetchSource(self.where, len(PROMPT), request_id, only)

    def compute(self, name: str, prompt: Sequence[int], namespace: Namespace) -> list[int]:
        """Let the answering engine compute a prompt; return its tokens."""
        self.there.submit(name, prompt, GREEDY, namespace=namespace)
        self.there.run()
        return self.there.tokens(name)

    def fetch(
        self,
        name: str,
        prompt: Sequence[int],
        namespace: Namespace,
        source: FetchSource | None = None,
    ) -> list[int]:
        """Let the fetching engine answer the prompt with fetched blocks, and return its tokens.

        The engine fetches even if computing is predicted to be faster, as with a model this small.
        """
        asked = source or self.source()
        self.here.submit(name, prompt, GREEDY, namespace=namespace, source=asked, loads="always")
        self.until(lambda: self.here.core.is_idle)
        return self.here.tokens(name)

    def turn(self) -> None:
        self.there.step()
        self.here.step()

    def until(self, is_so: Callable[[], bool], *, is_stepped: bool = True) -> None:
        """Step both engines until the condition is true, or only `here` if not `is_stepped`."""
        give_up = time.monotonic() + GIVE_UP_S
        while True:
            if is_stepped:
                self.there.step()
            self.here.step()
            if is_so():
                return
            assert time.monotonic() < give_up, "it goes on for ever"

    def fetched(self) -> FetchStats:
        """Return the fetching engine's counts of fetches."""
        ways = self.here.core.stats().exchange.fetched.values()
        return next(iter(ways), FetchStats())

    def counted(self) -> tuple[int, int, int, int]:
        """Return the prompt tokens that `here` has looked up, found, fetched and computed."""
        counted: tuple[int, int, int, int] = msgspec.structs.astuple(
            self.here.core.stats().windows["all"]
        )
        return counted

    def forget(self) -> None:
        """Empty both caches, and forget all sent messages."""
        self.expect_nothing_left()
        for one in self.both():
            one.link.sent.clear()

    def expect_nothing_left(self) -> None:
        """Wait until each engine knows that the other is done. Check that neither holds a block."""
        give_up = time.monotonic() + GIVE_UP_S
        while any(one.core.components.exchange.is_busy or leased(one) for one in self.both()):
            assert time.monotonic() < give_up, "a lease is held for ever"
            self.turn()
            time.sleep(0.001)
        for one in self.both():
            one.expect_nothing_left()

    def both(self) -> tuple[RealEngine, RealEngine]:
        return self.there, self.here


def leased(engine: RealEngine) -> int:
    return engine.cache.capacity.pool().leased


@contextmanager
def pair_of(
    model_dir: Path,
    where: str,
    *,
    bounds: Bounds = BOUNDS,
    there: Bounds | None = None,
    key: LinkKey | None = None,
    patience: Patience = PATIENT,
    silence_s: float = 30.0,
    disk: Path | None = None,
    disk_there: Path | None = None,
    over: Callable[[EngineConfig], EngineConfig] = as_it_is,
) -> Iterator[Pair]:
    """Make both engines. The answering engine has the bounds `there` and the disk `disk_there`.

    `over` changes the configs of both engines.
    """
    answers = ExchangeAt(where, key)
    asks = ExchangeAt(None, key, patience, silence_s)
    source = RealEngine(
        str(model_dir), there or bounds, exchange=answers, disk=disk_there, over=over
    )
    target = RealEngine(str(model_dir), bounds, exchange=asks, disk=disk, over=over)
    assert source.exchange is not None
    assert source.exchange.address is not None
    try:
        yield Pair(source, target, source.exchange.address)
    finally:
        target.close()
        source.close()
