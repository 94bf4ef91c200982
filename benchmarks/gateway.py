"""What the gateway adds: latency at a steady rate, and memory, before a fake engine.

    python -m benchmarks.gateway --rate 200 --seconds 10
    python -m benchmarks.gateway --rate 800 --seconds 10 --gateways 2 --tokens 1

The gateway runs in a process of its own (or in several, on one port), with everything the real
one has but the engine, which tells its first token at once and the others on a fixed schedule. So
the time to the first token is what the gateway added, and so is whatever the whole answer takes
beyond the schedule. The load is an open loop: requests are sent when they are due, whatever
became of those before. Times count from the sending; how late the load's own clock sent them is
told beside.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop

from engine.messages import Generate
from gateway.config import GatewayConfig
from gateway.first_start import ensure_first_start
from gateway.main import composed, set_aside
from gateway.server import make_server, serve
from tests.doubles.fake_engine import FakeEngine
from tests.doubles.served import MODEL, config_of
from tests.doubles.tiny_model import write_tiny_model

GAP_S = 0.01
PROMPT_TOKENS = 500  # of one character each


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
        set_aside()
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


def request_bytes(key: str, tokens: int) -> bytes:
    """One streaming chat."""
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": "s" * (PROMPT_TOKENS - 100)},
                {"role": "user", "content": "u" * 100},
            ],
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    return (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    ).encode()


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def total(of: Callable[[int], float], pids: Sequence[int]) -> float:
    """Of all gateways together."""
    return sum(map(of, pids))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all do not pass, in milliseconds."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] * 1000


async def measure(
    config: GatewayConfig, pids: Sequence[int], key: str, options: argparse.Namespace
) -> None:
    """Warm up, load, and print."""
    client = Client(config.port, request_bytes(key, options.tokens))
    await until_up(config.port)
    print(f"idle memory            {total(memory_mb, pids):8.1f} MB")
    await load(client, options.rate, 2)
    before = total(cpu_seconds, pids)
    timings = await load(client, options.rate, options.seconds)
    spent = (total(cpu_seconds, pids) - before) / len(timings) * 1000
    schedule = (options.tokens - 1) * GAP_S
    added = {
        "sent late by the load": [timing.late for timing in timings],
        "added, first token": [timing.first_token for timing in timings],
        "added, whole answer": [timing.whole - schedule for timing in timings],
    }
    print(f"requests               {len(timings):8d} at {options.rate:g}/s")
    for name, values in added.items():
        p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
        print(f"{name:22} {p50:8.2f} ms p50 {p99:8.2f} ms p99")
    print(f"cpu of the gateway     {spent:8.2f} ms a request")
    print(f"memory after the load  {total(memory_mb, pids):8.1f} MB")


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


def main() -> None:
    """Measure, or be the process that is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200, help="requests per second")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--tokens", type=int, default=16, help="per answer")
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        uvloop.run(serve_alone(msgspec.json.decode(options.serve, type=GatewayConfig)))
        return
    with tempfile.TemporaryDirectory() as directory:
        model = write_tiny_model(Path(directory) / "model")
        data = Path(directory) / "data"
        keys = asyncio.run(ensure_first_start(data, clock=time.time))
        config = config_of(model, data, port=options.port)
        with gateways(config, options.gateways) as pids:
            uvloop.run(measure(config, pids, keys.demo_key or "", options))


if __name__ == "__main__":
    main()
