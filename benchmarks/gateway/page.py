"""The CPU time that an open operator's page takes from the threads that serve requests.

    python -m benchmarks.gateway.page --tenants 1000 --blocks 1000000

On a host with other load, percentiles of requests' times do not show what an open page costs. But a
request waits at most for the time that the page takes from two threads. These are the engine's
thread between two steps, and the gateway's event loop in one iteration. So each request of the page
is sent alone, to a gateway in this process. The engine is in another process, and has the numbers
of tenants and blocks given by --tenants and --blocks.

First the engine prints the thread time of its answers. Then this program prints, for each request
of the page, the event loop's CPU time and its longest iteration. A task that reads the thread's
clock in every iteration measures them. The control is the longest iteration without a request.
Prints JSON lines.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import aiohttp
import typer
import uvloop

from benchmarks.gateway.page_engine import make_tenants
from benchmarks.gateway.started import first_started
from benchmarks.record import emit
from cli.options.flags import flattened
from gateway.config import GatewayConfig
from gateway.http.protocol.server import make_server, serve
from gateway.replicas.flushes import FlushReader
from gateway.startup.composition import composed
from gateway.startup.engine_links import connected
from gateway.startup.first_start import ADMIN_KEY, KEYS_FILE, read_keys
from gateway.startup.process import freeze_startup_objects
from tests.doubles.gateway.gateway_process import until_up

FAST_S, SLOW_S = 2.0, 5.0
FAST = ("/admin/overview?since={since}", "/admin/requests", "/admin/refusals")
SLOW = (
    "/admin/cache/tree",
    "/admin/cache/prefixes?order=hot",
    "/admin/cache/prefixes?order=wasteful",
)
OF_TENANTS = ("/admin/tenants", "/admin/groups", "/admin/cache/stats")  # the page's view of tenants


@dataclass(frozen=True, slots=True)
class Options:
    """The sizes of the cache, the number of requests, and the gateway's port."""

    tenants: Annotated[int, typer.Option(help="That hold the blocks.")] = 1000
    blocks: Annotated[int, typer.Option(help="Of all tenants.")] = 1_000_000
    times: Annotated[int, typer.Option(help="That each question is asked.")] = 20
    port: Annotated[int, typer.Option(help="Of the gateway.")] = 8096


async def measure(options: Options, admin_key: str) -> None:
    """Send the page's requests and print the times."""
    await until_up(options.port)
    # While the engine was being filled it did not answer, and the gateway counted it as dead.
    for _ in range(6):
        await _until_ready(options.port)
        await asyncio.sleep(1)
    spent = {path: await _asked(options, admin_key, path) for path in (*FAST, *SLOW, *OF_TENANTS)}
    for path, (cpu_ms, turns) in spent.items():
        emit(f"gateway: {path.partition('{')[0]}", cpu_ms=cpu_ms, **_longest(turns))
    for _ in range(3):
        async with _turns() as turns:
            await asyncio.sleep(0.5)
        emit("gateway: nothing is asked", **_longest([max(turns)]))
    share = sum(spent[path][0] / FAST_S for path in FAST)
    share += sum(spent[path][0] / SLOW_S for path in SLOW)
    emit("gateway: an open page", cpu_ms_a_second=share)
    share += sum(spent[path][0] / SLOW_S for path in OF_TENANTS)
    emit("gateway: with the tenants' view as well", cpu_ms_a_second=share)


async def _asked(options: Options, admin_key: str, path: str) -> tuple[float, list[float]]:
    """Measure the event loop's CPU ms for an answer, and its longest iteration in each answer."""
    target = f"http://127.0.0.1:{options.port}{path.format(since=time.time() - 10)}"
    await asyncio.to_thread(_get, target, admin_key, 2)
    before = time.thread_time()
    await asyncio.to_thread(_get, target, admin_key, options.times)
    cpu_ms = (time.thread_time() - before) / options.times * 1e3
    longest = []
    for _ in range(options.times):
        async with _turns() as turns:
            await asyncio.to_thread(_get, target, admin_key, 1)
        longest.append(max(turns))
    return cpu_ms, longest


def _longest(turns: list[float]) -> dict[str, float]:
    return {"longest_turn_ms": statistics.median(turns) * 1e3, "of_all_ms": max(turns) * 1e3}


async def _until_ready(port: int) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.2)


@asynccontextmanager
async def _turns() -> AsyncIterator[list[float]]:
    turns: list[float] = []

    async def look() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            turns.append(time.thread_time() - before)

    task = asyncio.create_task(look())
    try:
        yield turns
    finally:
        task.cancel()


def _get(target: str, admin_key: str, times: int) -> None:
    async def ask() -> None:
        headers = {"authorization": f"Bearer {admin_key}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            for _ in range(times):
                async with session.get(target) as answer:
                    answer.raise_for_status()
                    await answer.read()

    asyncio.run(ask())


async def serving(options: Options, config: GatewayConfig) -> None:
    """Run the measured gateway in this thread."""
    await make_tenants(Path(config.data_dir), options.tenants)
    admin_key = read_keys(Path(config.data_dir) / KEYS_FILE)[ADMIN_KEY]
    flushes = FlushReader()
    async with (
        connected(config, flushes) as engine,
        composed(config, engine, flushes=flushes) as gateway,
    ):
        freeze_startup_objects()
        servers = [make_server(bind, config.bounds, config.grace_s) for bind in gateway.binds]
        served = asyncio.create_task(serve(servers))
        try:
            await measure(options, admin_key)
        finally:
            served.cancel()
            await asyncio.gather(served, return_exceptions=True)


def main(options: Options) -> None:
    """Measure the page's cost."""
    with first_started(options.port, access_log="off") as (config, _):
        arguments = [config.engines[0], str(options.tenants), str(options.blocks)]
        engine = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gateway.page_engine", *arguments]
        )
        try:
            uvloop.run(serving(options, config))
        finally:
            engine.kill()
            engine.wait()


if __name__ == "__main__":
    typer.run(flattened(main))
