"""An engine for `page.py`, complete except for the model, with many tenants' blocks in its cache.

    python -m benchmarks.gateway.page_engine SOCKET TENANTS BLOCKS

First it prints JSON lines with its thread's CPU time for each answer to the page, since steps
cannot run in this time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer

from benchmarks.record import emit, p50_and_p99
from engine.core import EngineCore
from engine.link.codec import Codec
from engine.link.engine_end.socket_link import SocketLink
from engine.link.query_messages import StatsReply
from engine.link.stats.tier_stats import TierTokens
from engine.link.view_messages import OverviewQuery, PrefixesQuery, SequencesQuery, TreeQuery, View
from engine.scheduling.fairness.queue import QueueLimits
from engine.scheduling.step_builder import StepLimits
from engine.startup.assembly import EngineLimits, LoadedRunner, assemble
from engine.step import Forward, Sampled, Step
from gateway.state.records import Tenant
from gateway.state.sqlite.store import SqliteStore
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from tests.doubles.engine.welcomes import welcome_of

BLOCK_SIZE, VOCAB_SIZE, PROMPT_BLOCKS = 16, 260, 16
STEP_S = 0.004
_QUERIES: dict[str, Callable[[], View[Any]]] = {
    "overview": lambda: OverviewQuery(query_id="", owners=50, evictions=100),
    "sample": lambda: OverviewQuery(query_id=""),
    "sequences": lambda: SequencesQuery(query_id="", limit=400),
    "namespaces": lambda: TreeQuery(query_id="", node=None, limit=200),
    "hot": lambda: PrefixesQuery(query_id="", order="hot", limit=50),
    "wasteful": lambda: PrefixesQuery(query_id="", order="wasteful", limit=50),
}


class Launched:
    """A model step that has been computed."""

    def __init__(self, count: int) -> None:
        self._count = count

    def collect(self) -> list[Sampled]:
        """Sample the letter `a` for each row that samples."""
        return [Sampled(97)] * self._count


@dataclass
class TimedRunner:
    """A model runner that takes a step's time and computes nothing."""

    step_s: float

    def launch(self, step: Step) -> Launched:
        """Wait for the time of a step, and return its samples."""
        time.sleep(self.step_s)
        return Launched(sum(bool(row.samples) for row in step.rows))

    def launch_forward(self, step: Step) -> Forward:
        """Refuse the call, because no row here has a constraint."""
        raise NotImplementedError


def large_engine(link: SocketLink, tenants: int, blocks: int) -> EngineCore:
    """Create an engine whose cache is full of prompts, equally many of each tenant."""
    total = blocks + blocks // 10
    welcome = welcome_of(VOCAB_SIZE, 4096, (257,), block_size=BLOCK_SIZE, num_blocks=total)
    core = assemble(
        LoadedRunner(TimedRunner(STEP_S), welcome, total, MemoryError),
        link,
        EngineLimits(StepLimits(4096, 64), QueueLimits(), 10.0),
    )
    cache, random = core.components.cache, np.random.default_rng(0)
    for number in range(blocks // PROMPT_BLOCKS):
        tenant = number % tenants
        path = NamespacePath.single(Namespace(f"{tenant:016d}".encode()))
        ids = random.integers(0, 256, PROMPT_BLOCKS * BLOCK_SIZE + 1, dtype=np.int32)
        lease = cache.acquire(path, ids, owner=f"tn_{tenant}", now=time.monotonic())
        assert lease is not None
        now = core.components.clock()
        core.components.counters.admitted(f"tn_{tenant}", len(ids), TierTokens(), now)
        whole = len(ids) - 1
        keys = block_keys(path, ids, BLOCK_SIZE)
        cache.commit(lease, ids[:whole], whole, keys, now=time.monotonic())
        cache.release(lease, now=time.monotonic())
        if number % 3 == 0:
            again = cache.acquire(path, ids, owner=f"tn_{tenant}", now=time.monotonic())
            assert again is not None
            cache.release(again, now=time.monotonic())
    return core


def run_engine(socket: str, tenants: int, blocks: int) -> None:
    """Time the engine's replies, and serve until the process is ended."""
    with closing(SocketLink(socket, codec=Codec())) as link:
        core = large_engine(link, tenants, blocks)
        _time_answers(core)
        while True:
            core.step()


def _time_answers(core: EngineCore) -> None:
    views, survey = core.queries.tree_views, core.components.cache.survey
    began = time.thread_time()
    core.components.cache.tree.depth  # noqa: B018  what the stats walked before each answer
    emit("engine: a walk over all nodes", ms=(time.thread_time() - began) * 1e3)
    times = []
    for _ in range(20):
        began = time.thread_time()
        Codec().encode(StatsReply(query_id="", stats=core.stats()))
        times.append(time.thread_time() - began)
    emit("engine: stats of all flows", **p50_and_p99(times))
    slices, began = [], time.thread_time()
    survey.begin(time.monotonic())
    emit("engine: a survey begins", ms=(time.thread_time() - began) * 1e3)
    while views.is_surveying:
        began = time.thread_time()
        survey.advance(128)
        slices.append(time.thread_time() - began)
    emit("engine: a slice of a survey", slices=len(slices), **p50_and_p99(slices))
    for name, query in _QUERIES.items():
        times = []
        for _ in range(20):
            began = time.thread_time()
            Codec().encode(core.queries.answer(query(), ()))
            times.append(time.thread_time() - began)
        emit(f"engine: {name}", **p50_and_p99(times))


async def make_tenants(data_dir: Path, count: int) -> None:
    """Create the tenants whose blocks the engine's cache holds."""
    store = SqliteStore(data_dir / "state.sqlite")
    for number in range(count):
        await store.create(Tenant(id=f"tn_{number}", name=f"tenant {number}", created_at=0.0))
    await store.close()


if __name__ == "__main__":
    typer.run(run_engine)
