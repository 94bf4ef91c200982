"""How a flood of one tenant's requests affects another tenant's time to first token.

    python -m benchmarks.flood
    python -m benchmarks.flood --url http://127.0.0.1:8000 --admin-key rk-... --vocab 128000 \\
        --streams 64 --flood-prompt 8000 --victim-prompt 2000 --victim-prompt 8000

Without a URL it starts a whole `ratoon serve` with the handbook model. Both tenants are created
for the measurement and removed afterwards. The flood is --streams streams at once, each of which
sends its next request as soon as the last one is answered. The victim sends one request after the
other with pauses, like someone who reads the answers. Every prompt is random token ids, so none is
cached. Measurements with and without the flood alternate, so that other load affects both.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import urlsplit

import httpx
import typer

from benchmarks.flood_place import HTTP_S, Place, ServerFlags, place_of, tenants
from cli.flags import flattened
from cli.percentiles import percentile

WARM_UP = 3
FIRST_ID = 300  # below lie special tokens and bytes
BUSY_S = 0.2  # before a refused request of the flood is sent again
FLOOD_ON_S = 2.0  # for the flood to fill the server before measuring


@dataclass(frozen=True, slots=True)
class Asked:
    """The requests of flood and victim."""

    streams: Annotated[int, typer.Option("--streams", help="Concurrent requests of the flood.")] = (
        16
    )
    floods: Annotated[int, typer.Option("--floods", help="Tenants that the flood comes from.")] = 1
    flood_prompt: Annotated[int, typer.Option("--flood-prompt", help="Tokens of its prompts.")] = (
        1500
    )
    flood_output: Annotated[int, typer.Option("--flood-output", help="Tokens of its answers.")] = 32
    victim_output: Annotated[
        int, typer.Option("--victim-output", help="Tokens of its answers.")
    ] = 8
    asks: Annotated[
        int, typer.Option("--asks", help="Requests of the victim, with and without the flood each.")
    ] = 60
    rounds: Annotated[
        int,
        typer.Option("--rounds", help="How often measuring without and with the flood alternates."),
    ] = 3
    pause: Annotated[
        float,
        typer.Option("--pause", help="Seconds before each request of the victim, on average."),
    ] = 0.5


@dataclass
class Asker:
    """One tenant's stream of requests: prompts of random tokens."""

    place: Place
    key: str
    seed: int
    refused: int = 0
    _dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)

    async def ask(self, prompt_tokens: int, max_tokens: int) -> float | None:
        """Ask and read to the end; seconds to the first token, None when it was refused."""
        prompt = self._dice.choices(range(FIRST_ID, self.place.vocab), k=prompt_tokens)
        body = {
            "model": self.place.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        return await self._timed(json.dumps(body))

    async def pause(self, seconds: float) -> None:
        """Wait between half of it and one and a half."""
        await asyncio.sleep(seconds * (0.5 + self._dice.random()))

    async def _timed(self, body: str) -> float | None:
        parts = urlsplit(self.place.url)
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self.key}\r\n"
            f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        clock = asyncio.get_running_loop().time
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
        try:
            sent = clock()
            writer.write((head + body).encode())
            status = int((await reader.readline()).split()[1])
            if status in (429, 503):
                self.refused += 1
                return None
            await reader.readuntil(b"data: ")
            first = clock() - sent
            if b"[DONE]" not in await reader.read():
                raise RuntimeError(f"the stream broke off ({status})")
            return first
        finally:
            writer.close()


@dataclass
class Flood:
    """`streams` concurrent streams, divided among the tenants with these keys."""

    place: Place
    keys: Sequence[str]
    streams: int
    prompt_tokens: int
    max_tokens: int
    refused: int = 0

    async def run(self) -> None:
        """Ask for ever."""
        await asyncio.gather(*(self._one(number) for number in range(self.streams)))

    async def _one(self, number: int) -> None:
        asker = Asker(self.place, self.keys[number % len(self.keys)], secrets.randbits(32))
        while True:
            if await asker.ask(self.prompt_tokens, self.max_tokens) is None:
                self.refused += 1
                await asyncio.sleep(BUSY_S)


async def victim(asker: Asker, asked: Asked, prompt: int, asks: int) -> list[float]:
    """Ask one after the other; the seconds to the first token of each."""
    times = []
    for _ in range(asks):
        await asker.pause(asked.pause)
        taken = await asker.ask(prompt, asked.victim_output)
        if taken is None:
            raise RuntimeError("the victim was refused")
        times.append(taken)
    return times


async def measure(place: Place, asked: Asked, prompt: int) -> dict[str, object]:
    """Measure without and with the flood in turn, `rounds` times; returns the figures."""
    names = ["victim", *(f"flood-{number}" for number in range(asked.floods))]
    with tenants(place, names) as (own, *keys):
        asker = Asker(place, own, seed=prompt)
        flood = Flood(place, keys, asked.streams, asked.flood_prompt, asked.flood_output)
        await victim(asker, asked, prompt, WARM_UP)
        alone: list[float] = []
        beside: list[float] = []
        for _ in range(asked.rounds):
            alone += await victim(asker, asked, prompt, asked.asks // asked.rounds)
            flooding = asyncio.create_task(flood.run())
            await asyncio.sleep(FLOOD_ON_S)
            beside += await victim(asker, asked, prompt, asked.asks // asked.rounds)
            if flooding.done():
                await flooding  # raises what ended it
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
            await until_idle(place)
    return told(prompt, alone, beside, flood.refused)


def told(
    prompt: int, alone: Sequence[float], beside: Sequence[float], refused: int
) -> dict[str, object]:
    """The figures, in milliseconds and as ratios."""
    figures: dict[str, object] = {"victim_prompt": prompt, "asks": len(alone), "refused": refused}
    for name, percent in (("p50", 50), ("p90", 90), ("p99", 99)):
        one, other = (percentile(sorted(times), percent) * 1e3 for times in (alone, beside))
        figures[name] = {"alone_ms": one, "beside_ms": other, "times": other / one}
    return figures


async def until_idle(place: Place) -> None:
    """Return when nothing runs or waits."""
    headers = {"Authorization": f"Bearer {place.admin_key}"}
    async with httpx.AsyncClient(base_url=place.url, headers=headers, timeout=HTTP_S) as client:
        while True:
            queue = (await client.get("/admin/cache/stats")).raise_for_status().json()["queue"]
            if not any(queue.values()):
                return
            await asyncio.sleep(BUSY_S)


def show(figures: dict[str, object]) -> None:
    """A line for each percentile."""
    print(f"a prompt of {figures['victim_prompt']} tokens, {figures['asks']} asks each")
    for name in ("p50", "p90", "p99"):
        row = figures[name]
        assert isinstance(row, dict)
        print(
            f"  {name}  alone {row['alone_ms']:8.1f} ms   beside the flood "
            f"{row['beside_ms']:8.1f} ms   {row['times']:6.2f} times"
        )


def main(
    asked: Asked,
    server: ServerFlags,
    victim_prompt: Annotated[
        list[int] | None,
        typer.Option("--victim-prompt", help="Tokens; may be given several times."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One line of JSON for each length of prompt.")
    ] = False,
) -> None:
    """Measure each length of prompt, and print."""
    if (server.url is None) != (server.admin_key is None):
        raise typer.BadParameter("--url and --admin-key go together")
    with place_of(server) as place:
        for prompt in victim_prompt or [64, asked.flood_prompt]:
            figures = asyncio.run(measure(place, asked, prompt))
            if as_json:
                print(json.dumps(figures), flush=True)
            else:
                show(figures)


if __name__ == "__main__":
    typer.run(flattened(main))
