"""The memory of a gateway: idle, with idle connections, and with streams as well.

    python -m benchmarks.gateway.memory --idle 1000 --busy 500 --workers 4

The gateway is the real one. Its engine has no model, and sends each stream one token in each step.
Idle connections have requested /healthz once. Prints the anonymous memory of all processes,
in MiB. Memory that processes share counts once. Also prints how much memory a connection and a
stream add.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop

from benchmarks.gateway.idle_connections import ask
from benchmarks.gateway.started import chat_request, first_started
from benchmarks.gateway.streams import StreamClient
from benchmarks.record import emit
from cli.options.flags import flattened
from gateway.config import GatewayConfig
from tests.doubles.gateway.gateway_process import until_up
from tests.doubles.processes import anonymous_mib, children

SETTLED_S = 3.0  # seconds from a change of load until memory is read


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """The numbers of connections, and the answers that the busy connections stream."""

    idle: Annotated[int, typer.Option(help="Connections that do nothing.")] = 1000
    busy: Annotated[int, typer.Option(help="Connections with a stream each.")] = 500
    tokens: Annotated[int, typer.Option(help="Of each answer.")] = 256
    step_ms: Annotated[float, typer.Option(help="Of the engine.")] = 100.0
    port: Annotated[int, typer.Option(help="Of the gateway.")] = 8095
    workers: Annotated[int, typer.Option(help="Of the gateway.")] = 1
    tokenizer: Annotated[Path | None, typer.Option(help="A model's tokenizer.json.")] = None


async def measure(options: MemoryOptions, pid: int, key: str) -> None:
    """Print the gateway's memory under each load."""
    await until_up(options.port)
    await asyncio.sleep(SETTLED_S)
    before = _told("idle", pid)
    connections = [
        await asyncio.open_connection("127.0.0.1", options.port) for _ in range(options.idle)
    ]
    for connection in connections:
        await ask(connection)
    idle = _told(f"{options.idle} idle connections", pid, before, options.idle)
    clients = await _streams(options, key)
    await asyncio.sleep(SETTLED_S)
    chunks = sum(client.chunks for client in clients)
    _told(f"{options.busy} busy streams as well", pid, idle, options.busy)
    refused = b"".join(client.refused for client in clients)
    if refused or not chunks:
        raise RuntimeError(refused.decode() or "no token reached the clients")
    for _, writer in connections:
        writer.close()


async def _streams(options: MemoryOptions, key: str) -> list[StreamClient]:
    messages = [{"role": "user", "content": "u" * 100}]
    request = chat_request(key, messages=messages, max_tokens=options.tokens)
    loop, clients = asyncio.get_running_loop(), list[StreamClient]()
    for _ in range(options.busy):
        made = loop.create_connection(lambda: StreamClient(request), "127.0.0.1", options.port)
        clients.append((await made)[1])
    return clients


def _told(name: str, pid: int, before: float | None = None, more: int = 0) -> float:
    """Print and return the memory of a process and its children, in MiB.

    If `before` is given, also print the growth since then, divided by `more`.
    """
    processes = [pid, *children(pid)]
    mib = sum(map(anonymous_mib, processes))
    each = {} if before is None else {"kib_each": 1024 * (mib - before) / more}
    emit(name, processes=len(processes), mib=mib, **each)
    return mib


@contextmanager
def gateway_before(config: GatewayConfig, step_ms: float) -> Iterator[int]:
    """Run a gateway and an engine with steps of `step_ms`, and yield the gateway's process id."""
    paced = ["tests.doubles.engine.paced_engine", config.engines[0], f"{step_ms / 1000}"]
    engine = subprocess.Popen([sys.executable, "-m", *paced])
    command = [sys.executable, "-m", "gateway", msgspec.json.encode(config).decode()]
    gateway = subprocess.Popen(command)
    try:
        yield gateway.pid
    finally:
        gateway.terminate()
        gateway.wait(30)
        engine.kill()
        engine.wait()


def _with(tokenizer: Path | None, config: GatewayConfig) -> GatewayConfig:
    """Copy `tokenizer`, if given, into the gateway's model directory."""
    if tokenizer is not None:
        shutil.copy(tokenizer, Path(config.model_dir) / "tokenizer.json")
    return config


def main(options: MemoryOptions) -> None:
    """Start an engine and a gateway, load them, and print the gateway's memory."""
    with (
        first_started(options.port, workers=options.workers) as (config, key),
        gateway_before(_with(options.tokenizer, config), options.step_ms) as pid,
    ):
        uvloop.run(measure(options, pid, key))


if __name__ == "__main__":
    typer.run(flattened(main))
