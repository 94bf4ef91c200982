"""What a tenant that floods takes from one that does not: time to first token, alone and beside.

    python -m benchmarks.flood --streams 16 --prompt 1500 --asks 40

A whole `ratoon serve` with the handbook model. The victim asks one short question after the
other, each with a prompt of its own, so that none is cached. The flood is another tenant with so
many streams at once, each asking again as soon as it was answered, with long prompts of which
none is cached either. Told is the victim's time to the first token, before and during the flood.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gateway import percentile
from tests.seams.server import Server, running_server

WARM_UP = 3
VICTIM_TOKENS = 64
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Asker:
    """One tenant: prompts of random tokens, streamed."""

    def __init__(self, server: Server, key: str, seed: int) -> None:
        self._port = int(server.url.rsplit(":", 1)[1])
        self._key = key
        self._dice = random.Random(seed)

    async def ask(self, prompt_tokens: int, max_tokens: int) -> float:
        """Ask and read to the end; seconds to the first token."""
        prompt = [self._dice.randrange(300, 2000) for _ in range(prompt_tokens)]
        body = json.dumps(
            {
                "model": "handbook",
                "prompt": prompt,
                "max_tokens": max_tokens,
                "ignore_eos": True,
                "stream": True,
            }
        )
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self._key}\r\n"
            f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        clock = asyncio.get_running_loop().time
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            sent = clock()
            writer.write((head + body).encode())
            await reader.readuntil(b"data: ")
            first = clock() - sent
            if b"[DONE]" not in await reader.read():
                raise RuntimeError("the stream broke off")
            return first
        finally:
            writer.close()


async def flood(server: Server, key: str, streams: int, prompt_tokens: int) -> None:
    """Ask for ever, on so many streams."""

    async def one(seed: int) -> None:
        asker = Asker(server, key, seed)
        while True:
            await asker.ask(prompt_tokens, 32)

    await asyncio.gather(*(one(100 + number) for number in range(streams)))


async def victim(server: Server, asks: int) -> list[float]:
    """Ask one after the other; the times to first token."""
    asker = Asker(server, server.demo_key, 1)
    times = [await asker.ask(VICTIM_TOKENS, 8) for _ in range(WARM_UP + asks)]
    return times[WARM_UP:]


async def measure(server: Server, options: argparse.Namespace) -> None:
    """Alone, then beside the flood."""
    alone = await victim(server, options.asks)
    flooding = asyncio.create_task(flood(server, server.demo2_key, options.streams, options.prompt))
    await asyncio.sleep(2)
    beside = await victim(server, options.asks)
    if flooding.done():
        await flooding
    flooding.cancel()
    await asyncio.gather(flooding, return_exceptions=True)
    show("alone", alone)
    show("beside a flood", beside)
    times = percentile(beside, 0.5) / percentile(alone, 0.5)
    tails = percentile(beside, 0.99) / percentile(alone, 0.99)
    print(f"{'times as long':20} {times:8.2f}    p50 {tails:8.2f}    p99")


def show(name: str, times: Sequence[float]) -> None:
    """One line."""
    p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
    print(f"{name:20} {p50:8.1f} ms p50 {p99:8.1f} ms p99")


def main() -> None:
    """Start a server, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=16, help="of the flood")
    parser.add_argument("--prompt", type=int, default=1500, help="tokens of each of its prompts")
    parser.add_argument("--asks", type=int, default=40, help="of the victim, each time")
    parser.add_argument("--batch-tokens", type=int, help="a step's budget")
    options = parser.parse_args()
    settings = {"RATOON_CACHE_TOKENS": "65536"}
    if options.batch_tokens is not None:
        settings["RATOON_MAX_BATCH_TOKENS"] = str(options.batch_tokens)
    with (
        tempfile.TemporaryDirectory() as directory,
        running_server(Path(directory) / "data", settings) as server,
    ):
        asyncio.run(measure(server, options))


if __name__ == "__main__":
    main()
