"""What the gateway adds to a request: latency at a steady rate, and memory, with a fake engine.

    python -m benchmarks.gateway --rate 200 --seconds 10
    python -m benchmarks.gateway --rate 800 --seconds 10 --gateways 2 --tokens 1

The gateway runs in a process of its own (or in several, on one port) and is complete but for the
engine, which sends its first token at once and the others on a fixed schedule. So the time to the
first token is what the gateway added, and so is all time beyond the schedule in the whole answer.
The load is an open loop: requests are sent when they are due, whether or not earlier ones have
ended. Times count from the sending; how late the load itself sent them is printed too.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop

from benchmarks.processes import busy_seconds, resident_mib
from cli.flags import flattened
from cli.percentiles import percentile
from engine.messages import Generate
from gateway.config import GatewayConfig
from gateway.first_start import ensure_first_start
from gateway.main import composed, freeze_startup_objects
from gateway.server import make_server, serve
from tests.doubles.fake_engine import FakeEngine
from tests.doubles.served import MODEL, config_of
from tests.doubles.tiny_model import write_tiny_model

GAP_S = 0.01
PROMPT_TOKENS = 500  # of one character each


@dataclass(frozen=True, slots=True)
class Options:
    """The load, and the number of gateways."""

    rate: Annotated[float, typer.Option("--rate", help="Requests per second.")] = 200
    seconds: Annotated[float, typer.Option("--seconds", help="Of load.")] = 10
    tokens: Annotated[int, typer.Option("--tokens", help="Of each answer.")] = 16
    port: Annotated[int, typer.Option("--port", help="Of the gateways.")] = 8099
    gateways: Annotated[int, typer.Option("--gateways", help="On that one port.")] = 1


class Schedule:
    """The pace of the fake engine: token k of a request comes `k * GAP_S` after its start."""

    def __init__(self) -> None:
        self._started: dict[str, float] = {}

    async def __call__(self, request: Generate, at: int) -> None:
        """Wait until the token `at` is due; the end is due with the last token."""
        if at >= request.sampling.max_tokens:
            self._started.pop(request.request_id)
            return
        now = asyncio.get_running_loop().time()
        due = self._started.setdefault(request.request_id, now) + at * GAP_S
        await asyncio.sleep(max(0.0, due - now))


@dataclass(frozen=True)
class Timing:
    """One request's seconds: how late it was sent; from then to first token and to end."""

    late: float
    first_token: float
    whole: float


async def serve_alone(config: GatewayConfig) -> None:
    """The gateway process."""
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


class Client:
    """Keeps its connections and opens more when all are busy."""

    def __init__(self, port: int, request: bytes) -> None:
        self._port = port
        self._request = request
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send(self, due: float) -> Timing:
        """Send one request and read its stream to the end."""
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
        return Timing(sent - due, first - sent, time.monotonic() - sent)


async def load(client: Client, rate: float, seconds: float) -> list[Timing]:
    """Requests at `rate` a second for `seconds`."""
    start = time.monotonic()
    running = []
    for number in range(int(rate * seconds)):
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        running.append(asyncio.create_task(client.send(due)))
    return await asyncio.gather(*running)


def chat_request(key: str, chat: dict[str, object]) -> bytes:
    """A chat as it is sent: `chat` is its body but for the model."""
    body = json.dumps({"model": MODEL, **chat})
    return (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    ).encode()


def spread(seconds: Sequence[float]) -> str:
    """Two percentiles of times, as they are printed."""
    ordered = sorted(seconds)
    p50, p99 = (percentile(ordered, percent) * 1e3 for percent in (50, 99))
    return f"{p50:8.2f} ms p50 {p99:8.2f} ms p99"


def total(of: Callable[[int], float], pids: Sequence[int]) -> float:
    """Of all gateways together."""
    return sum(map(of, pids))


async def measure(config: GatewayConfig, pids: Sequence[int], key: str, options: Options) -> None:
    """Warm up, load, and print."""
    chat = {
        "messages": [
            {"role": "system", "content": "s" * (PROMPT_TOKENS - 100)},
            {"role": "user", "content": "u" * 100},
        ],
        "max_tokens": options.tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    client = Client(config.port, chat_request(key, chat))
    await until_up(config.port)
    print(f"idle memory            {total(resident_mib, pids):8.1f} MiB")
    await load(client, options.rate, 2)
    before = total(busy_seconds, pids)
    timings = await load(client, options.rate, options.seconds)
    spent = (total(busy_seconds, pids) - before) / len(timings) * 1000
    schedule = (options.tokens - 1) * GAP_S
    added = {
        "sent late by the load": [timing.late for timing in timings],
        "added, first token": [timing.first_token for timing in timings],
        "added, whole answer": [timing.whole - schedule for timing in timings],
    }
    print(f"requests               {len(timings):8d} at {options.rate:g}/s")
    for name, values in added.items():
        print(f"{name:22} {spread(values)}")
    print(f"cpu of the gateway     {spent:8.2f} ms a request")
    print(f"memory after the load  {total(resident_mib, pids):8.1f} MiB")


async def until_up(port: int) -> None:
    """Wait until the port takes connections."""
    for _ in range(600):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise RuntimeError("the gateway did not come up")


@contextmanager
def gateways(config: GatewayConfig, count: int) -> Iterator[list[int]]:
    """Processes of gateways on one port; their ids."""
    command = [sys.executable, "-m", "benchmarks.gateway", "--serve"]
    command.append(msgspec.json.encode(config).decode())
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


def main(
    options: Options, config: Annotated[str | None, typer.Option("--serve", hidden=True)] = None
) -> None:
    """Measure, or be the process that is measured."""
    if config is not None:
        uvloop.run(serve_alone(msgspec.json.decode(config, type=GatewayConfig)))
        return
    with tempfile.TemporaryDirectory() as directory:
        model = write_tiny_model(Path(directory) / "model")
        data = Path(directory) / "data"
        keys = asyncio.run(ensure_first_start(data, clock=time.time))
        asked = config_of(model, data, port=options.port)
        with gateways(asked, options.gateways) as pids:
            uvloop.run(measure(asked, pids, keys.demo_key or "", options))


if __name__ == "__main__":
    typer.run(flattened(main))
