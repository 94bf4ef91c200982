"""The cost of idle connections for the gateway, and their effect on other requests.

    python -m benchmarks.gateway.idle_connections --connections 10000

Each connection has asked for /healthz once and stays open. Prints the memory per connection, and
the time of a /healthz request on another connection while all are open. This process and the
gateway each need a limit of descriptors (`ulimit -n`) some hundred above the number of connections.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import typer
import uvloop

from benchmarks.gateway.started import first_started
from benchmarks.record import emit, p50_and_p99
from tests.doubles.gateway.gateway_process import gateways, until_up
from tests.doubles.processes import resident_mib

HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
AT_ONCE = 64
PROBES = 500

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def ask(connection: Connection) -> float:
    """Return the seconds until /healthz has answered on a connection."""
    reader, writer = connection
    start = time.monotonic()
    writer.write(HEALTH)
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head:
        raise RuntimeError(head.decode())
    await reader.readuntil(b"}")
    return time.monotonic() - start


async def measure(port: int, pid: int, count: int) -> None:
    """Open the connections, measure the gateway, and print."""
    await until_up(port)
    before = resident_mib(pid)
    opening = asyncio.Semaphore(AT_ONCE)

    async def one() -> Connection:
        async with opening:
            connection = await asyncio.open_connection("127.0.0.1", port)
            await ask(connection)
            return connection

    connections = await asyncio.gather(*(one() for _ in range(count)))
    held = resident_mib(pid)
    probe = await asyncio.open_connection("127.0.0.1", port)
    times = [await ask(probe) for _ in range(PROBES)]
    alive = [not writer.is_closing() for _, writer in connections]
    emit(
        "idle connections",
        open=sum(alive),
        asked=count,
        kib_each=(held - before) * 1024 / count,
        **{f"health_{name}": ms for name, ms in p50_and_p99(times).items()},
    )
    for _, writer in connections:
        writer.close()


def main(
    connections: Annotated[int, typer.Option(help="That do nothing.")] = 10_000,
    port: Annotated[int, typer.Option(help="Of the gateway.")] = 8099,
) -> None:
    """Measure the gateway with each number of connections."""
    with first_started(port) as (config, _), gateways(config, 1) as (pid,):
        uvloop.run(measure(port, pid, connections))


if __name__ == "__main__":
    typer.run(main)
