"""What an open operator's page costs the requests beside it, with a large cache and many tenants.

    python -m benchmarks.gateway.page --tenants 1000 --blocks 1000000

A gateway in a process of its own, before an engine in another one that is real but for its model:
its cache holds `--blocks` blocks of `--tenants` tenants. Requests come at a steady rate, as in
`benchmarks.gateway.requests`; by turns with and without what an open page polls, so that both see
the same host. `--pages` of them may be open. First it prints what the engine's own answers take of
its thread, in processor time, which every step waits for. JSON lines.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import aiohttp
import msgspec
import numpy as np
import typer
import uvloop

from benchmarks.gateway.requests import Client, GatewayTiming, load
from benchmarks.gateway.started import chat_request, first_started
from benchmarks.record import emit, p50_and_p99, progress
from cli.options.flags import flattened
from engine.core import EngineCore
from engine.link.codec import Codec
from engine.link.query_messages import StatsReply
from engine.link.socket_link import SocketLink
from engine.link.stats_messages import TierTokens
from engine.link.view_messages import OverviewQuery, PrefixesQuery, SequencesQuery, TreeQuery, View
from engine.scheduling.queue import QueueLimits
from engine.scheduling.step_builder import StepLimits
from engine.startup.assembly import EngineLimits, LoadedRunner, assemble
from engine.stats.views import view
from engine.step import Forward, Sampled, Step
from gateway.auth.first_start import ADMIN_KEY, KEYS_FILE, read_keys
from gateway.state.records import Tenant
from gateway.state.sqlite.store import SqliteStore
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from tests.doubles.engine.welcomes import welcome_of
from tests.doubles.gateway.gateway_process import until_up
from tests.doubles.processes import busy_seconds

BLOCK_SIZE, VOCAB_SIZE, PROMPT_BLOCKS = 16, 260, 16
FAST_S, SLOW_S = 2.0, 5.0  # how often the page asks
FAST = ("/admin/overview?since={since}", "/admin/requests", "/admin/refusals")
SLOW = (
    "/admin/cache/tree",
    "/admin/cache/prefixes?order=hot",
    "/admin/cache/prefixes?order=wasteful",
)
_QUERIES: dict[str, Callable[[], View]] = {
    "overview": lambda: OverviewQuery(query_id="", owners=50, evictions=100),
    "sample": lambda: OverviewQuery(query_id=""),
    "sequences": lambda: SequencesQuery(query_id="", limit=400),
    "namespaces": lambda: TreeQuery(query_id="", node=None, limit=200),
    "hot": lambda: PrefixesQuery(query_id="", order="hot", limit=50),
    "wasteful": lambda: PrefixesQuery(query_id="", order="wasteful", limit=50),
}


@dataclass(frozen=True, slots=True)
class Options:
    """The cache, the load, and how often they take turns."""

    tenants: Annotated[int, typer.Option(help="That hold blocks.")] = 1000
    blocks: Annotated[int, typer.Option(help="Of all tenants.")] = 1_000_000
    rate: Annotated[float, typer.Option(help="Requests per second.")] = 50
    seconds: Annotated[float, typer.Option(help="Of each turn.")] = 20
    turns: Annotated[int, typer.Option(help="With the page, and as many without.")] = 4
    pages: Annotated[int, typer.Option(help="That are open.")] = 1
    step_ms: Annotated[float, typer.Option(help="That the engine's model takes.")] = 4
    port: Annotated[int, typer.Option(help="Of the gateway.")] = 8097
    engine: Annotated[str | None, typer.Option(help="Be the engine behind this socket.")] = None


class Launched:
    """A step that has been computed."""

    def __init__(self, count: int) -> None:
        self._count = count

    def collect(self) -> list[Sampled]:
        """The letter `a` for each row that samples."""
        return [Sampled(97)] * self._count


@dataclass
class TimedRunner:
    """A runner that takes its time and computes nothing."""

    step_s: float

    def launch(self, step: Step) -> Launched:
        """Wait, and sample."""
        time.sleep(self.step_s)
        return Launched(sum(bool(row.samples) for row in step.rows))

    def launch_forward(self, step: Step) -> Forward:
        """No row has a constraint here."""
        raise NotImplementedError


def large_engine(link: SocketLink, options: Options) -> EngineCore:
    """An engine whose cache is full of prompts, of which each tenant has as many."""
    total = options.blocks + options.blocks // 10
    welcome = welcome_of(VOCAB_SIZE, 4096, (257,), block_size=BLOCK_SIZE, num_blocks=total)
    core = assemble(
        LoadedRunner(TimedRunner(options.step_ms / 1e3), welcome, total, MemoryError),
        link,
        EngineLimits(StepLimits(4096, 64), QueueLimits(), 10.0),
    )
    cache, random = core.components.cache, np.random.default_rng(0)
    for number in range(options.blocks // PROMPT_BLOCKS):
        tenant = number % options.tenants
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
        if number % 3 == 0:  # a hit
            again = cache.acquire(path, ids, owner=f"tn_{tenant}", now=time.monotonic())
            assert again is not None
            cache.release(again, now=time.monotonic())
    return core


def run_engine(options: Options, socket: str) -> None:
    """Time the engine's answers, then serve until the process is ended."""
    with closing(SocketLink(socket, codec=Codec())) as link:
        core = large_engine(link, options)
        _time_answers(core)
        while True:
            core.step()


def _time_answers(core: EngineCore) -> None:
    views, survey = core.components.tree_views, core.components.cache.survey
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
            Codec().encode(view(core.components, query(), ()))
            times.append(time.thread_time() - began)
        emit(f"engine: {name}", **p50_and_p99(times))


async def poll(options: Options, admin_key: str) -> list[float]:
    """What an open page asks for, until it is cancelled; the seconds of each answer."""
    times: list[float] = []
    target = f"http://127.0.0.1:{options.port}"
    headers = {"authorization": f"Bearer {admin_key}"}
    async with aiohttp.ClientSession(target, headers=headers) as session:
        since, round_ = 0.0, 0
        try:
            while True:
                slow = SLOW if round_ % round(SLOW_S / FAST_S) == 0 else ()
                for path in (*FAST, *slow):
                    began = time.monotonic()
                    async with session.get(path.format(since=since)) as answer:
                        answer.raise_for_status()
                        await answer.read()
                    times.append(time.monotonic() - began)
                since, round_ = time.time() - 10, round_ + 1
                await asyncio.sleep(FAST_S)
        except asyncio.CancelledError:
            return times


async def measure(options: Options, pid: int, key: str, admin_key: str) -> None:
    """By turns with and without the page."""
    request = chat_request(key, messages=[{"role": "user", "content": "u" * 400}], max_tokens=16)
    client = Client(options.port, request)
    await until_up(options.port)
    await until_ready(options.port)
    await asyncio.sleep(3)  # the engine has taken seconds to be filled, and is believed dead for it
    await load(client, options.rate, 5)
    timings: dict[str, list[GatewayTiming]] = {"without the page": [], "with the page": []}
    spent, polls = dict.fromkeys(timings, 0.0), list[float]()
    for turn in range(2 * options.turns):
        name = list(timings)[turn % 2]
        count = options.pages if turn % 2 else 0
        pages = [asyncio.create_task(poll(options, admin_key)) for _ in range(count)]
        before = busy_seconds(pid)
        timings[name] += await load(client, options.rate, options.seconds)
        spent[name] += busy_seconds(pid) - before
        for page in pages:
            page.cancel()
            polls += await page
        progress(f"turn {turn + 1} of {2 * options.turns}")
    for name, found in timings.items():
        emit(f"{name}: first token", **p50_and_p99([one.first_token for one in found]))
        emit(f"{name}: whole", requests=len(found), **p50_and_p99([one.whole for one in found]))
        emit(f"{name}: the gateway's processor", s=spent[name])
    emit("the page's own requests", requests=len(polls), **p50_and_p99(polls))


async def until_ready(port: int) -> None:
    """Wait until the gateway behind the port has its engine."""
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.2)


async def make_tenants(data_dir: Path, count: int) -> None:
    """The records of the tenants whose blocks the engine holds."""
    store = SqliteStore(data_dir / "state.sqlite")
    for number in range(count):
        await store.create(Tenant(id=f"tn_{number}", name=f"tenant {number}", created_at=0.0))
    await store.close()


def main(options: Options) -> None:
    """Measure; or be the engine."""
    if options.engine is not None:
        run_engine(options, options.engine)
        return
    with first_started(options.port, access_log="off") as (config, key):
        asyncio.run(make_tenants(Path(config.data_dir), options.tenants))
        admin_key = read_keys(Path(config.data_dir) / KEYS_FILE)[ADMIN_KEY]
        sizes = ["--tenants", str(options.tenants), "--blocks", str(options.blocks)]
        pace = ["--step-ms", str(options.step_ms), "--engine", config.engines[0]]
        engine = [sys.executable, "-m", "benchmarks.gateway.page", *sizes, *pace]
        gateway = [sys.executable, "-m", "gateway", msgspec.json.encode(config).decode()]
        processes = [subprocess.Popen(engine), subprocess.Popen(gateway)]
        try:
            uvloop.run(measure(options, processes[1].pid, key, admin_key))
        finally:
            for process in processes:
                process.kill()
                process.wait()


if __name__ == "__main__":
    typer.run(flattened(main))
