"""The cost of the gateway per request: latency at a steady rate, and memory.

    python -m benchmarks.gateway.requests --rate 200 --seconds 10
    python -m benchmarks.gateway.requests --rate 800 --seconds 10 --gateways 2 --tokens 1

The gateway runs in a process of its own, or in several processes on one port. The gateway is
complete except for the engine, which sends its first token at once and the others on a fixed
schedule. So the whole time to first token, and all delay of the answer's end beyond the schedule,
is the gateway's. The load is an open loop: requests are sent when they are due, even if earlier
requests have not ended. Times begin when a request is sent. Prints JSON lines, one of which tells
how late requests were sent.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
import uvloop

from benchmarks.gateway.started import chat_request, first_started
from benchmarks.record import emit, p50_and_p99
from cli.options.flags import flattened
from tests.doubles.gateway.gateway_process import GAP_S, gateways, until_up
from tests.doubles.processes import busy_seconds, resident_mib

PROMPT_TOKENS = 500


@dataclass(frozen=True, slots=True)
class Options:
    """The load, and the number of gateways."""

    rate: Annotated[float, typer.Option(help="Requests per second.")] = 200
    seconds: Annotated[float, typer.Option(help="Of load.")] = 10
    tokens: Annotated[int, typer.Option(help="Of each answer.")] = 16
    port: Annotated[int, typer.Option(help="Of the gateways.")] = 8099
    gateways: Annotated[int, typer.Option(help="On that one port.")] = 1
    access_log: Annotated[str, typer.Option(help="lines, json or off; into a file.")] = "off"


@dataclass(frozen=True)
class GatewayTiming:
    """The seconds by which a request was sent late, and from its sending to first token and end."""

    late: float
    first_token: float
    whole: float


class Client:
    """A client that keeps its connections and opens more when all are busy."""

    def __init__(self, port: int, request: bytes) -> None:
        self._port = port
        self._request = request
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send(self, due: float) -> GatewayTiming:
        """Send a request and read its stream to the end."""
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        sent = time.monotonic()
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head:
            raise RuntimeError(head.decode())
        told = await reader.readuntil(b"\n\n\r\n")
        first = time.monotonic()
        while not told.endswith(b"0\r\n\r\n"):
            told = (told + await reader.read(65536))[-5:]
        self._idle.append((reader, writer))
        return GatewayTiming(sent - due, first - sent, time.monotonic() - sent)


async def load(client: Client, rate: float, seconds: float) -> list[GatewayTiming]:
    """Send requests at `rate` a second for `seconds`."""
    start = time.monotonic()
    running = []
    for number in range(int(rate * seconds)):
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        running.append(asyncio.create_task(client.send(due)))
    return await asyncio.gather(*running)


async def measure(options: Options, pids: Sequence[int], key: str) -> None:
    """Warm up, send the load, and print the measurements."""
    request = chat_request(
        key,
        messages=[
            {"role": "system", "content": "s" * (PROMPT_TOKENS - 100)},
            {"role": "user", "content": "u" * 100},
        ],
        max_tokens=options.tokens,
        stream_options={"include_usage": True},
    )
    client = Client(options.port, request)
    await until_up(options.port)
    idle_mib = sum(map(resident_mib, pids))
    await load(client, options.rate, 2)
    before = sum(map(busy_seconds, pids))
    timings = await load(client, options.rate, options.seconds)
    spent = (sum(map(busy_seconds, pids)) - before) / len(timings) * 1000
    schedule = (options.tokens - 1) * GAP_S
    emit("sent late by the load", **p50_and_p99([one.late for one in timings]))
    emit("added, first token", **p50_and_p99([one.first_token for one in timings]))
    emit("added, whole answer", **p50_and_p99([one.whole - schedule for one in timings]))
    emit(
        "the gateway",
        requests=len(timings),
        cpu_ms_each=spent,
        idle_mib=idle_mib,
        loaded_mib=sum(map(resident_mib, pids)),
    )


def main(options: Options) -> None:
    """Measure the gateway's cost."""
    with (
        first_started(options.port, access_log=options.access_log) as (config, key),
        tempfile.TemporaryFile() as log,
        gateways(config, options.gateways, log) as pids,
    ):
        uvloop.run(measure(options, pids, key))


if __name__ == "__main__":
    typer.run(flattened(main))
