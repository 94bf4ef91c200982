"""How attacks by some clients affect another one, the bystander.

    python -m benchmarks.hostile --seconds 6

The gateway runs in a process of its own with a fake engine (`benchmarks/gateway.py`). A bystander
asks for one token again and again, each time on a new connection: alone first, then during each of
the attacks, which are repeated without a pause. Prints its times to the whole answer, and the
growth of the gateway's memory.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.gateway import gateways, spread, until_up
from benchmarks.processes import resident_mib
from gateway.config import Bounds
from gateway.first_start import ensure_first_start
from tests.doubles.attacks import ATTACKS, Attack, Target, ask
from tests.doubles.served import MODEL, config_of
from tests.doubles.tiny_model import write_tiny_model

AT_ONCE = {"slow heads": 100, "slow bodies": 100, "slow readers": 4, "resets": 20}
REST_S = 0.02  # between the bystander's questions


async def bystand(target: Target, seconds: float) -> list[float]:
    """Ask for so long."""
    times, over = [], time.monotonic() + seconds
    while time.monotonic() < over:
        times.append(await ask(target))
        await asyncio.sleep(REST_S)
    return times


async def keep_up(attack: Attack, target: Target, at_once: int) -> None:
    """Attack for ever."""

    async def one() -> None:
        while True:
            await attack(target)

    await asyncio.gather(*(one() for _ in range(at_once)))


async def measure(pid: int, attacker: Target, bystander: Target, seconds: float) -> None:
    """Alone, then beside each attack."""
    await until_up(attacker.port)
    await bystand(bystander, 1)
    show("alone", await bystand(bystander, seconds), 0.0)
    for name, attack in ATTACKS.items():
        before = resident_mib(pid)
        attacking = asyncio.create_task(keep_up(attack, attacker, AT_ONCE.get(name, 4)))
        await asyncio.sleep(0.5)
        times = await bystand(bystander, seconds)
        grown = resident_mib(pid) - before
        if attacking.done():
            await attacking
        attacking.cancel()
        await asyncio.gather(attacking, return_exceptions=True)
        show(name, times, grown)
        await asyncio.sleep(1)


def show(name: str, times: list[float], grown_mib: float) -> None:
    """One line."""
    print(f"{name:14} {spread(times)} {grown_mib:+8.1f} MiB {len(times):6} asked")


def main(
    seconds: Annotated[float, typer.Option(help="Of each attack.")] = 6.0,
    port: Annotated[int, typer.Option(help="Of the gateway.")] = 8097,
) -> None:
    """Start a gateway, attack it, print."""
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        keys = asyncio.run(ensure_first_start(data, clock=time.time))
        config = config_of(
            write_tiny_model(Path(directory) / "model"),
            data,
            port=port,
            bounds=Bounds(head_deadline_s=2.0, body_deadline_s=2.0, stalled_write_s=2.0),
        )
        attacker, bystander = (
            Target(config.port, key or "", MODEL) for key in (keys.demo_key, keys.demo2_key)
        )
        with gateways(config, 1) as [pid]:
            asyncio.run(measure(pid, attacker, bystander, seconds))


if __name__ == "__main__":
    typer.run(main)
