"""Where the time of a hot prompt goes: to the first token of a prompt whose prefix is cached.

    python -m benchmarks.hot_prompts [--rounds 40] [--step-ms 4.4]

The gateway and the engine are the real ones, each a process of its own, but for the device: a
step with new tokens takes `--step-ms` there and computes nothing. The host's part of a replayed
step, block tables and inputs, is made as for a GPU, on the CPU. Prompts of 2,048, 8,192 and
32,000 cached token ids and 64 new ones are streamed, one at a time. Reports medians.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import torch
import typer
import uvloop

from benchmarks.record import emit
from benchmarks.shapes import write_shape
from cli.flags import flattened
from engine.assembly import Computer, Limits, ModelFacts, assemble
from engine.batch import count_decodes
from engine.codec import Codec
from engine.draft import StepLimits
from engine.graphs.block_tables import BlockTables
from engine.graphs.inputs import Room, StepInputs
from engine.graphs.steps import rooms_for
from engine.link import Incoming, SocketLink
from engine.messages import FromEngine, Generate, StepReply
from engine.process import StopSignal, serve
from engine.pulse import Echo
from engine.queue import QueueLimits
from engine.sampler.planner import Planner
from engine.shared_prefixes import SharedPrefixes, SharingRule
from engine.step import Sampled, Step
from gateway.config import GatewayConfig
from gateway.first_start import ensure_first_start
from kernels.tuning import decode_tuning, shared_tuning
from kernels.unit_sizes import UnitSizes
from tests.doubles.ports import free_port
from tests.doubles.served import MODEL, config_of

LENGTHS = (2_048, 8_192, 32_000)
NEW = 64
WARM_UP = 3  # rounds; the first finds nothing cached
MAX_TOKENS = 8
VOCABULARY, CONTEXT = 128_256, 131_072
BLOCK_SIZE, NUM_BLOCKS, SEATS = 16, 16_384, 256
SIZES = UnitSizes(
    decode_tuning(128, torch.bfloat16), shared_tuning(128, torch.bfloat16), kv_heads=8
)
TOKEN_BYTES = 4096  # of keys and values in a layer of an 8B
CPU = torch.device("cpu")
PARTS = (
    "to_engine_ms",
    "until_launched_ms",
    "device_ms",
    "until_told_ms",
    "to_client_ms",
    "whole_ms",
)
START_S = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """The load, and the device."""

    rounds: Annotated[int, typer.Option("--rounds", help="Requests of each length.")] = 40
    step_ms: Annotated[float, typer.Option("--step-ms", help="Of the device.")] = 4.4


@dataclass(slots=True)
class Moments:
    """When the engine did what with the newest request; monotonic seconds."""

    received: float = 0.0
    launched: float = 0.0
    collected: float = 0.0
    told: float | None = None


class TimedLink(SocketLink):
    """A link that notes when a request comes, and tells how it went when its first token left."""

    def __init__(self, path: str, moments: Moments, tell: Connection) -> None:
        super().__init__(path, codec=Codec())
        self._moments = moments
        self._tell = tell

    def receive(self, *, timeout_s: float) -> list[Incoming]:
        """As the link does."""
        incoming = super().receive(timeout_s=timeout_s)
        if any(isinstance(one.message, Generate) for one in incoming):
            self._moments.received, self._moments.told = time.monotonic(), None
        return incoming

    def send(self, client: bytes, message: FromEngine) -> bool:
        """As the link does."""
        now = self._moments
        if not isinstance(message, StepReply) or now.told is not None:
            return super().send(client, message)
        now.told = time.monotonic()
        is_sent = super().send(client, message)
        self._tell.send((now.received, now.launched, now.collected, now.told))
        return is_sent


@dataclass(frozen=True, slots=True)
class OnItsWay:
    """A step that is over at some time."""

    moments: Moments
    over: float
    num_rows: int

    def collect(self) -> list[Sampled]:
        """Wait for it."""
        time.sleep(max(0.0, self.over - time.monotonic()))
        if self.moments.told is None:
            self.moments.collected = time.monotonic()
        return [Sampled(77)] * self.num_rows


class TimedDevice:
    """A runner that does the host's part of a replayed step; the device's part is a wait."""

    def __init__(self, moments: Moments, step_s: float) -> None:
        self._moments = moments
        self._step_s = step_s
        self._over = 0.0
        self._planner = Planner(VOCABULARY, (1,), lambda: 1)
        self._prefixes = SharedPrefixes(SharingRule(BLOCK_SIZE, TOKEN_BYTES, 1024, 16))
        self._tables = BlockTables(
            num_seats=SEATS,
            num_blocks=CONTEXT // BLOCK_SIZE,
            scratch_block=NUM_BLOCKS,
            device=CPU,
        )
        rooms = sorted(rooms_for(SEATS, 1024), key=lambda room: (room.num_tokens, room.num_rows))
        flat = torch.zeros(max(room.total for room in rooms), dtype=torch.int32)
        self._inputs = [StepInputs(room, flat, self._tables, BLOCK_SIZE, SIZES) for room in rooms]

    def launch(self, step: Step) -> OnItsWay:
        """Begin after the step before it."""
        decodes = count_decodes(step.rows)
        needed = Room(decodes, step.num_tokens - decodes, len(step.rows) - decodes)
        self._prefixes.find(step.rows[:decodes])
        self._tables.update(step.rows)
        sampling = [row.sequence for row in step.rows if row.samples]
        draw = self._planner.plain(sampling)
        for inputs in self._inputs:
            if inputs.room.holds(needed) and bool(inputs.room.num_new) == bool(needed.num_new):
                inputs.fill(step.rows, draw)
                break
        now = time.monotonic()
        if needed.num_new:
            self._moments.launched = now
        self._over = max(now, self._over) + self._step_s
        return OnItsWay(self._moments, self._over, len(sampling))


def engine_process(socket: str, step_s: float, tell: Connection) -> None:
    """The engine."""
    torch.set_num_threads(1)
    moments, stop = Moments(), StopSignal()
    stop.listen()
    link, echo = TimedLink(socket, moments, tell), Echo(socket)
    facts = ModelFacts(b"f" * 32, VOCABULARY, CONTEXT, (1,), "cuda", "bfloat16")
    core = assemble(
        Computer(TimedDevice(moments, step_s), facts, NUM_BLOCKS, BLOCK_SIZE, MemoryError),
        link,
        Limits(StepLimits(8192, SEATS), QueueLimits(), 10.0, 1),
    )
    try:
        serve(core, stop, grace_s=1.0)
    finally:
        echo.close()
        link.close()


@dataclass(frozen=True, slots=True)
class Client:
    """Asks a gateway, one request after the other on one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    key: str

    async def ask(self, prompt: Sequence[int]) -> tuple[float, float]:
        """When it was sent, and when the first token came; RuntimeError for an error."""
        request = self._request(prompt)
        sent = time.monotonic()
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head:
            raise RuntimeError(head.decode())
        await self.reader.readuntil(b"\n\n\r\n")
        first = time.monotonic()
        await self.reader.readuntil(b"\r\n0\r\n\r\n")
        return sent, first

    def _request(self, prompt: Sequence[int]) -> bytes:
        asked = {"prompt": [*prompt], "max_tokens": MAX_TOKENS, "ignore_eos": True, "stream": True}
        body = json.dumps({"model": MODEL, "temperature": 0, **asked})
        return (
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
            f"authorization: Bearer {self.key}\r\ncontent-length: {len(body)}\r\n\r\n{body}"
        ).encode()


async def measure(port: int, key: str, told: Connection, rounds: int) -> None:
    """Ask by turns for each length, and print where the time went, one JSON line a length."""
    client = Client(*await asyncio.open_connection("127.0.0.1", port), key)
    dice = random.Random(7)
    heads = {length: dice.choices(range(10, VOCABULARY), k=length) for length in LENGTHS}
    parts: defaultdict[int, list[list[float]]] = defaultdict(list)
    for number in range(WARM_UP + rounds):
        for length, head in heads.items():
            sent, first = await client.ask([*head, *dice.choices(range(10, VOCABULARY), k=NEW)])
            if number >= WARM_UP:
                moments = [sent, *told.recv(), first]
                parts[length].append([b - a for a, b in pairwise(moments)] + [first - sent])
            else:
                told.recv()
    client.writer.close()
    for length, times in parts.items():
        medians = (1000 * median(part) for part in zip(*times, strict=True))
        emit(f"hot prompt of {length}", **dict(zip(PARTS, medians, strict=True)))


async def until_ready(port: int) -> None:
    """Wait until the gateway has an engine."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.1)
            continue
        writer.write(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        if b" 200 " in answer.split(b"\r\n", 1)[0]:
            return
        await asyncio.sleep(0.1)


def run(directory: Path, options: Options) -> None:
    """One measurement in a directory of its own."""
    data, socket = directory / "data", str(directory / "engine.sock")
    model = write_shape("llama-3.1-8b", directory / "model")
    key = asyncio.run(ensure_first_start(data, clock=time.time)).demo_key or ""
    config = msgspec.structs.replace(
        config_of(model, data, port=free_port(), workers=1), engine_socket=socket
    )
    told, tell = multiprocessing.Pipe(duplex=False)
    engine = multiprocessing.get_context("spawn").Process(
        target=engine_process, args=(socket, options.step_ms / 1000, tell), daemon=True
    )
    engine.start()
    gateway = subprocess.Popen([sys.executable, "-m", "gateway", _encoded(config)])
    try:
        uvloop.run(asyncio.wait_for(until_ready(config.port), START_S))
        uvloop.run(measure(config.port, key, told, options.rounds))
    finally:
        gateway.terminate()
        gateway.wait(30)
        engine.terminate()
        engine.join(30)


def _encoded(config: GatewayConfig) -> str:
    return msgspec.json.encode(config).decode()


def main(options: Options) -> None:
    """Start an engine and a gateway, ask them, print."""
    with tempfile.TemporaryDirectory() as directory:
        run(Path(directory), options)


if __name__ == "__main__":
    typer.run(flattened(main))
