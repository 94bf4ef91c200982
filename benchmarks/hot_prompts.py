"""Where the time of a hot prompt goes: to the first token of a prompt whose prefix is cached.

    python -m benchmarks.hot_prompts [--rounds 40] [--step-ms 4.4] [--full]

The gateway and the engine are the real ones, each a process of its own, but for the device
(`timed_engine`). Prompts of 2,048, 8,192 and 32,000 cached token ids and 64 new ones are streamed,
one at a time. With `--full` the pool and a host tier below it have been filled before, so that
blocks go down for each prompt. Reports medians.
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
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import typer
import uvloop

from benchmarks.record import emit
from benchmarks.shapes import write_shape
from benchmarks.timed_engine import (
    BLOCK_SIZE,
    HOST_BLOCKS,
    NUM_BLOCKS,
    VOCABULARY,
    engine_process,
    host_tier,
)
from cli.flags import flattened
from gateway.config import GatewayConfig
from gateway.first_start import ensure_first_start
from tests.doubles.ports import free_port
from tests.doubles.served import MODEL, config_of

LENGTHS = (2_048, 8_192, 32_000)
NEW = 64
WARM_UP = 3  # rounds; the first finds nothing cached
MAX_TOKENS = 8
PARTS = (
    "to_engine_ms",
    "until_launched_ms",
    "device_ms",
    "until_told_ms",
    "to_client_ms",
    "whole_ms",
)
START_S = 60.0
FILLING = (NUM_BLOCKS + HOST_BLOCKS) * BLOCK_SIZE // max(LENGTHS) + 1  # requests


@dataclass(frozen=True, slots=True)
class Options:
    """The load, and the device."""

    rounds: Annotated[int, typer.Option("--rounds", help="Requests of each length.")] = 40
    step_ms: Annotated[float, typer.Option("--step-ms", help="Of the device.")] = 4.4
    full: Annotated[bool, typer.Option("--full", help="Pool and host tier are full.")] = False


@dataclass(frozen=True, slots=True)
class Client:
    """Asks a gateway, one request after the other on one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    key: str

    async def ask(self, prompt: list[int]) -> tuple[float, float]:
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

    def _request(self, prompt: list[int]) -> bytes:
        asked = {"prompt": prompt, "max_tokens": MAX_TOKENS, "ignore_eos": True, "stream": True}
        body = json.dumps({"model": MODEL, "temperature": 0, **asked})
        return (
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
            f"authorization: Bearer {self.key}\r\ncontent-length: {len(body)}\r\n\r\n{body}"
        ).encode()


async def measure(port: int, key: str, told: Connection, options: Options) -> None:
    """Ask by turns for each length, and print where the time went, one JSON line a length."""
    client = Client(*await asyncio.open_connection("127.0.0.1", port), key)
    dice = random.Random(7)
    for _ in range(FILLING if options.full else 0):
        await client.ask(ids(dice, max(LENGTHS)))
        told.recv()
    heads = {length: ids(dice, length) for length in LENGTHS}
    parts: defaultdict[int, list[list[float]]] = defaultdict(list)
    for number in range(WARM_UP + options.rounds):
        for length, head in heads.items():
            sent, first = await client.ask(head + ids(dice, NEW))
            if number >= WARM_UP:
                moments = [sent, *told.recv(), first]
                parts[length].append([b - a for a, b in pairwise(moments)] + [first - sent])
            else:
                told.recv()
    client.writer.close()
    for length, times in parts.items():
        medians = (1000 * median(part) for part in zip(*times, strict=True))
        emit(f"hot prompt of {length}", **dict(zip(PARTS, medians, strict=True)))


def ids(dice: random.Random, count: int) -> list[int]:
    """A prompt, or a part of one."""
    return dice.choices(range(10, VOCABULARY), k=count)


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
        target=engine_process,
        args=(socket, options.step_ms / 1000, host_tier() if options.full else None, tell),
        daemon=True,
    )
    engine.start()
    gateway = subprocess.Popen([sys.executable, "-m", "gateway", _encoded(config)])
    try:
        uvloop.run(asyncio.wait_for(until_ready(config.port), START_S))
        uvloop.run(measure(config.port, key, told, options))
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
