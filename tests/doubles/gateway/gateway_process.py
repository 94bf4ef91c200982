"""Gateways in processes of their own, on one port, complete except for the engine.

The engine is a fake that sends its first token at once and the others on a fixed schedule. `python
-m tests.doubles.gateway.gateway_process CONFIG` starts such a process.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import msgspec
import uvloop

from engine.link.messages import Generate
from gateway.config import GatewayConfig
from gateway.http.protocol.server import make_server, serve
from gateway.startup.composition import composed
from gateway.startup.process import freeze_startup_objects
from tests.doubles.engine.fake_engine import FakeEngine

GAP_S = 0.01  # seconds between two tokens


class Schedule:
    """The pace of the fake engine: token k of a request is due `k * GAP_S` after its start."""

    def __init__(self) -> None:
        self._started: dict[str, float] = {}

    async def __call__(self, request: Generate, at: int) -> None:
        """Wait until the token `at` is due. The end of the answer is due with the last token."""
        if at >= request.sampling.max_tokens:
            self._started.pop(request.request_id)
            return
        now = asyncio.get_running_loop().time()
        due = self._started.setdefault(request.request_id, now) + at * GAP_S
        await asyncio.sleep(max(0.0, due - now))


@contextmanager
def gateways(
    config: GatewayConfig, count: int, output: IO[bytes] | None = None
) -> Iterator[list[int]]:
    """Run gateway processes on the config's port, with output to `output`; yield their ids."""
    command = [sys.executable, "-m", "tests.doubles.gateway.gateway_process"]
    command.append(msgspec.json.encode(config).decode())
    processes = [subprocess.Popen(command, stdout=output) for _ in range(count)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


async def until_up(port: int) -> None:
    """Wait until the port accepts connections."""
    for _ in range(600):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise RuntimeError("the gateway did not come up")


async def _serve_alone(config: GatewayConfig) -> None:
    engine = FakeEngine()
    engine.pace = Schedule()
    async with composed(config, engine) as gateway:
        freeze_startup_objects()
        await serve(
            [
                make_server(bind, config.bounds, config.grace_s, shares_port=True)
                for bind in gateway.binds
            ]
        )


if __name__ == "__main__":
    uvloop.run(_serve_alone(msgspec.json.decode(sys.argv[1], type=GatewayConfig)))
