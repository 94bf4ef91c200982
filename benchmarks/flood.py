"""The effect of a flood of one tenant's requests on another tenant's time to first token.

    python -m benchmarks.flood [--setting max_batch_tokens=1024]
    python -m benchmarks.flood --url http://127.0.0.1:8000 --admin-key rk-... --vocab 128000 \\
        --streams 64 --flood-prompt 8000 --victim-prompt 2000 --victim-prompt 8000

Without a URL it starts `ratoon serve` with the handbook model. Both tenants are created for the
measurement and removed afterwards. The flood is --streams streams, each of which sends a new
request as soon as its previous request is answered. The victim sends request after request with
pauses, like a person who reads the answers. Prompts are random token ids, so none is cached.
Measurements with and without the flood alternate, so that other load affects both. Prints a JSON
line for each length of the victim's prompts.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import aiohttp
import typer

from benchmarks.record import emit
from benchmarks.running import Running, running
from cli.load.percentiles import percentile
from cli.load.sender import Sender, stream_body
from cli.options.flags import flattened
from tests.doubles.engine.shapes import EMBEDDED

WARM_UP = 3
FIRST_ID = 300  # lowest drawn token id: smaller ids are special tokens and bytes
BUSY_S = 0.2  # seconds before the flood repeats a refused request
FLOOD_ON_S = 2.0  # seconds for the flood to fill the server before measuring
START_S = 120.0


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    """The prompt and answer lengths of the flood's and the victim's requests."""

    streams: Annotated[int, typer.Option(help="Of the flood, at once.")] = 16
    floods: Annotated[int, typer.Option(help="Tenants that the flood comes from.")] = 1
    flood_prompt: Annotated[int, typer.Option(help="Tokens of each.")] = 1500
    flood_output: Annotated[int, typer.Option(help="Tokens of each.")] = 32
    victim_output: Annotated[int, typer.Option(help="Tokens of each.")] = 8
    asks: Annotated[
        int, typer.Option(help="Requests of the victim, with and without the flood each.")
    ] = 60
    rounds: Annotated[int, typer.Option(help="Of measuring without and with it.")] = 3
    pause: Annotated[
        float, typer.Option(help="Mean seconds before each request of the victim.")
    ] = 0.5
    vocab: Annotated[int, typer.Option(help="Token ids are drawn below this.")] = 2000


@dataclass
class Asker:
    """A tenant's sequential requests with prompts of random tokens."""

    sender: Sender
    model: str
    asked: AskedPrompt
    dice: random.Random
    refused: int = 0

    async def ask(self, prompt_tokens: int, max_tokens: int) -> float | None:
        """Send a request and read its answer.

        Returns the seconds to first token, or None if the request was refused.
        """
        prompt = self.dice.choices(range(FIRST_ID, self.asked.vocab), k=prompt_tokens)
        outcome = await self.sender.ask(stream_body(self.model, max_tokens) | {"prompt": prompt})
        if outcome.error is None:
            return outcome.ttft_s
        if outcome.error.startswith(("429", "503")):
            return None
        raise RuntimeError(outcome.error)

    async def ask_in_turn(self, prompt: int, asks: int) -> list[float]:
        """Send `asks` requests of the victim, one after another, with pauses.

        Returns each request's seconds to first token.
        """
        times = []
        for _ in range(asks):
            await asyncio.sleep(self.asked.pause * (0.5 + self.dice.random()))
            taken = await self.ask(prompt, self.asked.victim_output)
            if taken is None:
                raise RuntimeError("the victim was refused")
            times.append(taken)
        return times

    async def ask_for_ever(self) -> None:
        """Send one stream of the flood's requests, for ever."""
        while True:
            if await self.ask(self.asked.flood_prompt, self.asked.flood_output) is None:
                self.refused += 1
                await asyncio.sleep(BUSY_S)


async def measure(server: Running, keys: list[str], asked: AskedPrompt, prompt: int) -> None:
    """Measure with and without the flood in turn, `rounds` times, and print the figures.

    The first key is the victim's.
    """
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        model, url = replace(server, key=keys[0]).model(), server.url + "/v1/completions"

        def asker(key: str, seed: int) -> Asker:
            sender = Sender(session, url, key, every_chunk=True)
            return Asker(sender, model, asked, random.Random(seed))

        victim, floods = asker(keys[0], prompt), keys[1:]
        crowd = [asker(floods[n % len(floods)], secrets.randbits(32)) for n in range(asked.streams)]
        await victim.ask_in_turn(prompt, WARM_UP)
        alone: list[float] = []
        beside: list[float] = []
        for _ in range(asked.rounds):
            alone += await victim.ask_in_turn(prompt, asked.asks // asked.rounds)
            flooding = asyncio.gather(*(one.ask_for_ever() for one in crowd))
            await asyncio.sleep(FLOOD_ON_S)
            beside += await victim.ask_in_turn(prompt, asked.asks // asked.rounds)
            if flooding.done():
                await flooding  # raises the error that ended the flood early
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
            await asyncio.to_thread(wait_until_idle, server)
    refused = sum(one.refused for one in crowd)
    emit(f"a prompt of {prompt} tokens", refused=refused, **figures_of(alone, beside))


def wait_until_idle(server: Running) -> None:
    """Wait until no request runs or waits."""
    while any(server.admin("GET", "cache/stats")["queue"].values()):
        time.sleep(BUSY_S)


def figures_of(alone: list[float], beside: list[float]) -> dict[str, float]:
    """Compute percentiles with and without the flood, in milliseconds, and their ratio."""
    figures: dict[str, float] = {"asks": len(alone)}
    for percent in (50, 90, 99):
        one, other = (percentile(sorted(times), percent) * 1e3 for times in (alone, beside))
        figures |= {f"p{percent}_alone_ms": one, f"p{percent}_ms": other}
        figures[f"p{percent}_times_alone"] = other / one
    return figures


def main(
    asked: AskedPrompt,
    url: Annotated[str, typer.Option(help="Of a running server. Left out: start one.")] = "",
    admin_key: Annotated[str, typer.Option(help="The admin key of that server.")] = "",
    setting: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, of a server that is started.")
    ] = None,
    victim_prompt: Annotated[
        list[int] | None, typer.Option(help="Tokens; may be given several times.")
    ] = None,
) -> None:
    """Measure the victim's times for each length of its prompts."""
    if bool(url) != bool(admin_key):
        raise typer.BadParameter("--url and --admin-key go together")
    settings = {"cache_tokens": "65536"}
    settings |= dict(pair.split("=", 1) for pair in setting or ())
    with ExitStack() as stack:
        if url:
            server = Running(url.rstrip("/"), "", admin_key, pid=0, ready_s=0.0)
        else:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ratoon-")))
            data = scratch / "data"
            server = stack.enter_context(running(EMBEDDED, data, start_s=START_S, **settings))
        for prompt in victim_prompt or [64, asked.flood_prompt]:
            with server.tenants(1 + asked.floods) as keys:
                asyncio.run(measure(server, keys, asked, prompt))


if __name__ == "__main__":
    typer.run(flattened(main))
