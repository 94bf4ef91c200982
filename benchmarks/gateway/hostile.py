"""The effect of attackers on the latency of another client, on a real server.

    python -m benchmarks.gateway.hostile [--seconds 60] [--only trailers] [--only texts]

Starts `ratoon serve` with the embedded model and a context of 131,072 tokens. A victim requests a
chat of four tokens once a second, each time on a new connection. The victim does so alone, then
beside health checks from 16 connections (the reference), and then beside each attack. Attackers run
in another process without pauses. Some attackers have no key. Others have a tenant's key, and keep
its limits of 600 requests a minute and 16 at once. Prints the victim's times to the whole answer,
their ratio to the reference, and the maximum growth of the gateway's memory.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import httpx
import typer

from benchmarks.record import emit, p50_and_p99
from benchmarks.running import Running, running
from gateway.startup.first_start import DEMO2_KEY, KEYS_FILE, read_keys
from tests.doubles.engine.shapes import EMBEDDED
from tests.doubles.gateway.attacks import ATTACKS, Attack, Target, ask, long_text, unfinished_body
from tests.doubles.gateway.floods import FLOODS
from tests.doubles.processes import descendants, resident_mib

CONTEXT = 131_072
LIMITS = {"requests_per_minute": 600, "max_concurrent": 16}
MEASURE = "health checks"
SENTENCE = "the support code for Berlin is 4821. "
FITS = SENTENCE * 7500
LONG = SENTENCE * (5_000_000 // len(SENTENCE))

OF_A_TENANT: dict[str, Attack] = {
    "bodies": unfinished_body,
    "texts": partial(long_text, path="/v1/completions", text=LONG, max_tokens=1),
    "texts that fit": partial(long_text, path="/tokenize", text=FITS, return_token_strs=True),
    "long texts to tokenise": partial(long_text, path="/tokenize", text=LONG),
}
EVERY: dict[str, Attack] = FLOODS | ATTACKS | OF_A_TENANT
AT_ONCE = {"bodies": 100, "slow heads": 100, "slow bodies": 100, "slow readers": 4}
USUAL = 16


async def attack_for_ever(name: str, target: Target) -> None:
    """Run the attackers' requests, for ever."""

    async def one() -> None:
        while True:
            try:
                await EVERY[name](target)
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.01)

    await asyncio.gather(*(one() for _ in range(AT_ONCE.get(name, USUAL))))


@contextmanager
def attacked(name: str | None, target: Target) -> Iterator[None]:
    """Run the attack, if any, in another process while the block runs."""
    if name is None:
        yield
        return
    given = json.dumps([target.port, target.key, target.model])
    module = [sys.executable, "-m", "benchmarks.gateway.hostile"]
    process = subprocess.Popen([*module, "--attack", name, "--target", given])
    try:
        time.sleep(2)  # long enough for the attacker to import its modules and begin
        if process.poll() is not None:
            raise RuntimeError(f"the attackers ended with {process.returncode}")
        yield
    finally:
        process.kill()
        process.wait()


async def bystand(target: Target, gateway: int, seconds: float) -> tuple[list[float], float]:
    """Send the victim's requests. Return their times, and the gateway's peak memory in MiB."""
    times, most, over = [], 0.0, time.monotonic() + seconds
    while time.monotonic() < over:
        times.append(await ask(target))
        due = time.monotonic() + 1.0 - min(times[-1], 1.0)
        while time.monotonic() < due:
            most = max(most, resident_mib(gateway))
            await asyncio.sleep(0.05)
    return times, most


def measure(server: Running, victim: Target, seconds: float, only: Collection[str]) -> None:
    """Print a JSON line for each attack."""
    [gateway] = [pid for pid, command in descendants(server.pid) if "\0gateway\0" in command]
    attacker = Target(victim.port, server.key, victim.model)
    asyncio.run(bystand(victim, gateway, 3))
    usual = 0.0
    for name in (None, MEASURE, *(name for name in EVERY if name in (only or EVERY))):
        if name == MEASURE and usual:
            continue
        before = resident_mib(gateway)
        with attacked(name, attacker):
            times, most = asyncio.run(bystand(victim, gateway, seconds))
        figures = p50_and_p99(times)
        usual = figures["p99_ms"] if name == MEASURE else usual
        if usual:
            figures["over_health_checks"] = figures["p99_ms"] / usual
        emit(name or "alone", **figures, grown_mib=most - before)
        time.sleep(2)


def main(
    seconds: Annotated[float, typer.Option(help="Of each attack.")] = 60.0,
    only: Annotated[list[str], typer.Option(help="These attacks; all if none is named.")] = [],  # noqa: B006
    attack: Annotated[str, typer.Option(hidden=True)] = "",
    target: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Start a server, attack it, and print the victim's times."""
    if attack:
        asyncio.run(attack_for_ever(attack, Target(*json.loads(target))))
        return
    with tempfile.TemporaryDirectory() as directory:
        model, data = Path(directory) / "handbook", Path(directory) / "data"
        shutil.copytree(EMBEDDED, model)
        config = json.loads((model / "config.json").read_text())
        config["max_position_embeddings"] = CONTEXT
        (model / "config.json").write_text(json.dumps(config))
        with running(model, data, start_s=120, workers="1", cache_tokens=f"{CONTEXT}") as server:
            tenants = server.admin("GET", "tenants")["tenants"]
            [one] = [tenant["id"] for tenant in tenants if tenant["name"] == "demo"]
            server.admin("PATCH", f"tenants/{one}", {"limits": LIMITS})
            port = httpx.URL(server.url).port or 0
            victim = Target(port, read_keys(data / KEYS_FILE)[DEMO2_KEY], server.model())
            measure(server, victim, seconds, only)


if __name__ == "__main__":
    typer.run(main)
