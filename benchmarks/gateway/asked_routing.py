"""The time for which a worker waits for the router process, compared with a router of its own.

`benchmarks.gateway.routing` runs this. Times are wall-clock times from the question to the answer,
because two processes take part.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import uvloop

from benchmarks.gateway.fleet import UNDER_WAY, Fleet
from benchmarks.record import emit
from gateway.router_process.client import RouterClient
from gateway.router_process.main import listening
from gateway.router_process.messages import KnownBlocks
from gateway.router_process.service import RouterService
from gateway.routing.route import OwnRouting, RouteQuestion


def measure_asked(fleet: Fleet, prompt: bytes, requests: int) -> None:
    """Measure a worker's routing requests to a router process, and to the worker's own router.

    `prompt` has the block keys of the requests' prompt.
    """
    with TemporaryDirectory(prefix="ratoon") as directory:
        socket = Path(directory, "router.sock")
        process = get_context("fork").Process(target=_answer, args=(fleet, socket))
        process.start()
        try:
            taken = uvloop.run(_asked(fleet, RouterClient(socket), prompt, requests))
        finally:
            process.kill()
            process.join()
    _emit_waits("asked", taken, fleet)
    own = uvloop.run(_asked(fleet, OwnRouting(fleet.router), prompt, requests))
    _emit_waits("unasked", own, fleet)


def _emit_waits(case: str, taken: list[float], fleet: Fleet) -> None:
    p50, p99 = np.percentile(taken, (50, 99)).tolist()
    emit(case, p50_us=p50, p99_us=p99, blocks=fleet.prompt_blocks, replicas=len(fleet.names))


def _answer(fleet: Fleet, socket: Path) -> None:
    async def answer() -> None:
        service = RouterService(fleet.router, lambda: KnownBlocks({}))
        async with listening(service, socket):
            await asyncio.get_running_loop().create_future()

    uvloop.run(answer())


async def _asked(
    fleet: Fleet, routing: RouterClient | OwnRouting, keys: bytes, requests: int
) -> list[float]:
    taken, under_way = list[float](), list[tuple[str, str]]()
    async with routing.kept() if isinstance(routing, RouterClient) else nullcontext():
        for _ in range(requests):
            question = RouteQuestion(fleet.request(keys), fleet.names, fleet.sources)
            began = time.perf_counter()
            route = await routing.route(question)
            taken.append(1e6 * (time.perf_counter() - began))
            under_way.append((route.answer.replica, question.request.request_id))
            if len(under_way) > UNDER_WAY:
                routing.ended(*under_way.pop(0))
            assert not route.is_alone
        for one in under_way:
            routing.ended(*one)
    return taken
