"""Mixed load for minutes, with clients that leave early: are memory and blocks all returned?

    python -m benchmarks.soak --model llama-3.1-8b --seconds 600 [--quick]
                              [--callers 64] [--memory-fraction 0.6]

Clients send prompts of all lengths, half of them with a common prefix; about every third leaves in
the middle of its stream. Reports the memory of gateway and engine ten times, and at the end whether
all blocks are free once nothing runs and the cache is flushed. Exits with status 1 if a block is
not free, a request failed, or none ran to its end.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import aiohttp
import typer

from benchmarks.record import emit, progress
from benchmarks.running import Running, running
from benchmarks.shapes import model_directory
from cli.workload import stream_body

START_S = 180.0
SETTLE_S = 60.0  # until what was left behind has ended
LEAVES = 3  # one in so many leaves early
REPORTS = 10


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked: callers, tokens of prompts and answers, seconds."""

    callers: int
    longest: int
    prefix: int
    output: int
    seconds: float


@dataclass(slots=True)
class Heard:
    """What came back."""

    ends: Counter[str] = field(default_factory=Counter)
    chunks: int = 0


FULL = Load(callers=128, longest=8_192, prefix=2_048, output=512, seconds=600)
QUICK = Load(callers=4, longest=96, prefix=48, output=12, seconds=4)


def main(
    model: str = "handbook",
    seconds: float | None = None,
    callers: Annotated[int | None, typer.Option(min=1)] = None,
    memory_fraction: Annotated[float | None, typer.Option(min=0.0, max=1.0)] = None,
    quick: bool = False,
) -> None:
    """Print JSON lines: memory as it goes, then the account."""
    load = QUICK if quick else FULL
    load = replace(load, callers=callers or load.callers, seconds=seconds or load.seconds)
    settings = {"load_format": "dummy"} | ({"cache_tokens": "8192"} if quick else {})
    if memory_fraction is not None:
        settings["memory_fraction"] = str(memory_fraction)
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        directory = model_directory(model, Path(scratch))
        with running(directory, Path(scratch, "data"), start_s=START_S, **settings) as server:
            is_sound = asyncio.run(_soak(server, load))
    if not is_sound:
        raise typer.Exit(1)


async def _soak(server: Running, load: Load) -> bool:
    before = await _account(server)
    emit("before", **before, **_memory(server))
    heard, end = Heard(), time.monotonic() + load.seconds
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=120)
    headers = {"Authorization": f"Bearer {server.key}"}
    async with (
        aiohttp.ClientSession(
            headers=headers, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
        ) as session,
        asyncio.TaskGroup() as tasks,
    ):
        for caller in range(load.callers):
            tasks.create_task(_call(session, server, load, random.Random(caller), heard, end))
        tasks.create_task(_watch(server, load, heard, end))
    behind = await _account(server)
    emit("behind", **behind, **_memory(server), **heard.ends, chunks=heard.chunks)
    is_whole = behind["free"] == behind["total"] == before["total"] and not behind["leased"]
    emit("account", every_block_free=is_whole, failed=heard.ends["failed"])
    return is_whole and not heard.ends["failed"] and bool(heard.ends["whole"])


async def _call(
    session: aiohttp.ClientSession,
    server: Running,
    load: Load,
    rng: random.Random,
    heard: Heard,
    end: float,
) -> None:
    model = await asyncio.to_thread(server.model)
    common = [10 + number % 200 for number in range(load.prefix)]
    while time.monotonic() < end:
        head = common if rng.random() < 0.5 else []
        own = [rng.randrange(10, 2_000) for _ in range(rng.randint(1, load.longest - len(head)))]
        body = stream_body(model, rng.randint(2, load.output)) | {"prompt": head + own}
        leaves_after = rng.randint(1, load.output) if rng.randrange(LEAVES) == 0 else None
        heard.ends[await _listen(session, server, body, leaves_after, heard)] += 1


async def _listen(
    session: aiohttp.ClientSession,
    server: Running,
    body: dict[str, object],
    leaves_after: int | None,
    heard: Heard,
) -> str:
    """How it ended: whole, left, or failed."""
    try:
        async with session.post(server.url + "/v1/completions", json=body) as answer:
            if answer.status != 200:
                return "refused" if answer.status == 429 else "failed"
            lines, is_whole = 0, False
            async for line in answer.content:
                lines += line.startswith(b"data:")
                heard.chunks += line.startswith(b"data:")
                is_whole |= b"[DONE]" in line
                if leaves_after is not None and lines >= leaves_after:
                    return "left"
            return "whole" if is_whole else "failed"
    except (aiohttp.ClientError, TimeoutError) as error:
        progress(f"a stream failed: {error!r}")
        return "failed"


async def _watch(server: Running, load: Load, heard: Heard, end: float) -> None:
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(load.seconds / REPORTS, left))
        pool = await asyncio.to_thread(server.pool)
        elapsed = load.seconds - (end - time.monotonic())
        emit("while", elapsed_s=elapsed, **pool, **_memory(server))
        progress(f"{elapsed:.0f} of {load.seconds:.0f} s, {sum(heard.ends.values())} requests")


async def _account(server: Running) -> dict[str, int]:
    """The blocks once nothing runs and nothing is cached."""
    deadline = time.monotonic() + SETTLE_S
    while any((await asyncio.to_thread(server.queue)).values()):
        if time.monotonic() > deadline:
            break  # the account shows it
        await asyncio.sleep(0.1)
    await asyncio.to_thread(server.flush)
    return await asyncio.to_thread(server.pool)


def _memory(server: Running) -> dict[str, float]:
    return {f"{role}_mib": size for role, size in server.resident_mib().items()}


if __name__ == "__main__":
    typer.run(main)
