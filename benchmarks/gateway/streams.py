"""The tokens a second that a gateway worker can stream, and the CPU time per token.

    python -m benchmarks.gateway.streams --connections 128 --step-ms 10

The gateway is the real one with `--workers` workers, each pinned to a core if there are enough
cores. The load generator and an engine without a model share the last core. The engine sends every
sequence one token a step over the real link. Steps begin on time, even if the gateway is late.
Every connection keeps one streaming chat running. Prints the tokens a second that reached the
clients, and the gateway's CPU time for each token.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Annotated, cast

import msgspec
import typer
import uvloop

from benchmarks.gateway.started import chat_request, first_started
from benchmarks.record import emit
from cli.options.flags import flattened
from gateway.config import GatewayConfig
from tests.doubles.gateway.gateway_process import until_up
from tests.doubles.processes import busy_seconds, children, cores, pin

WARM_UP_S = 2.0
_EVENT_END = b"\n\n"
_LAST = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class StreamBenchOptions:
    """The load, and the number of workers."""

    connections: Annotated[int, typer.Option(help="Each with one stream.")] = 128
    step_ms: Annotated[float, typer.Option(help="Of the engine.")] = 10.0
    tokens: Annotated[int, typer.Option(help="Of each answer.")] = 256
    seconds: Annotated[float, typer.Option(help="Of counting.")] = 8.0
    workers: Annotated[int, typer.Option(help="Of the gateway.")] = 1
    port: Annotated[int, typer.Option(help="Of the gateway.")] = 8098


class StreamClient(asyncio.Protocol):
    """A connection that counts events, and sends its next request when an answer has ended."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: asyncio.Transport | None = None
        self.chunks = 0
        self.refused = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        # uvloop's transport does not inherit from asyncio.Transport
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count the events, and send the next request at an answer's end."""
        self.chunks += data.count(_EVENT_END)
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
            self.refused = data
        if data.endswith(_LAST) and self._transport is not None:
            self._transport.write(self._request)


async def measure(options: StreamBenchOptions, gateway: int, key: str, num_cores: int) -> None:
    """Open the connections, warm up, count for `options.seconds`, and print."""
    await until_up(options.port)
    await asyncio.sleep(1.0)
    workers = children(gateway) or [gateway]  # a single worker is the gateway's process itself
    for place, pid in enumerate(workers):
        pin(pid, [place % max(1, num_cores - 1)])
    messages = [{"role": "user", "content": "u" * 100}]
    request = chat_request(key, messages=messages, max_tokens=options.tokens)
    loop, clients = asyncio.get_running_loop(), list[StreamClient]()
    for _ in range(options.connections):
        made = loop.create_connection(lambda: StreamClient(request), "127.0.0.1", options.port)
        clients.append((await made)[1])
    await asyncio.sleep(WARM_UP_S)
    started, chunks = time.monotonic(), sum(client.chunks for client in clients)
    spent = {pid: busy_seconds(pid) for pid in workers}
    await asyncio.sleep(options.seconds)
    seconds = time.monotonic() - started
    chunks = sum(client.chunks for client in clients) - chunks
    used = [busy_seconds(pid) - before for pid, before in spent.items()]
    refused = b"".join(client.refused for client in clients)
    if refused or not chunks or not sum(used):
        raise RuntimeError(refused.decode() or "no token reached the clients")
    emit(
        "streams",
        offered_per_s=options.connections / options.step_ms * 1000,
        delivered_per_s=chunks / seconds,
        us_a_token=sum(used) / chunks * 1e6,
        per_s_and_core=chunks / sum(used),
        shares_of_cores=[round(one / seconds, 2) for one in used],
    )


def main(options: StreamBenchOptions) -> None:
    """Start an engine and a gateway, load them, print the rates."""
    with first_started(options.port, workers=options.workers) as (config, key):
        run(config, key, options)


def run(config: GatewayConfig, key: str, options: StreamBenchOptions) -> None:
    """Measure a gateway with this config and its own engine."""
    paced = ["tests.doubles.engine.paced_engine", config.engines[0], f"{options.step_ms / 1000}"]
    engine = subprocess.Popen([sys.executable, "-m", *paced])
    command = [sys.executable, "-m", "gateway", msgspec.json.encode(config).decode()]
    gateway = subprocess.Popen(command)
    num_cores = cores()
    for pid in (engine.pid, os.getpid()):
        pin(pid, [num_cores - 1])
    try:
        uvloop.run(measure(options, gateway.pid, key, num_cores))
    finally:
        gateway.terminate()
        gateway.wait(30)
        engine.kill()
        engine.wait()


if __name__ == "__main__":
    typer.run(flattened(main))
