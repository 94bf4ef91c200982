"""A client that keeps sending requests while others attack a gateway in a separate process.

It always gets its answer, the gateway's memory stays bounded, and the attack leaves nothing. The
benchmark `benchmarks/gateway/hostile.py` measures the times.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gateway.config import Bounds
from gateway.startup.first_start import ensure_first_start
from tests.doubles.gateway.attacks import ATTACKS, Target, ask
from tests.doubles.gateway.gateway_process import gateways, until_up
from tests.doubles.gateway.served import MODEL, config_of
from tests.doubles.ports import free_port
from tests.doubles.processes import resident_mib
from tests.doubles.waiting import wait_for

# Half of the memory that one tenant may make a gateway use: bodies, as bytes and as parsed values;
# received bytes of waiting requests; and memory that the allocator does not return.
MOST_MIB = 128.0
TIMES = {"slow heads": 50, "slow bodies": 50, "slow readers": 4, "resets": 100}
BOUNDS = Bounds(
    max_body_bytes=1 << 20, head_deadline_s=2.0, body_deadline_s=2.0, stalled_write_s=2.0
)


@dataclass(frozen=True)
class Fortress:
    """A gateway with a fake engine that sends a token every 10 ms."""

    pid: int
    attacker: Target
    bystander: Target
    admin_key: str

    def running(self) -> float:
        """Return the number of running requests."""
        headers = {"authorization": f"Bearer {self.admin_key}"}
        url = f"http://127.0.0.1:{self.attacker.port}/metrics"
        lines = httpx.get(url, headers=headers, timeout=30).text.splitlines()
        (line,) = (line for line in lines if line.startswith("ratoon_requests_running "))
        return float(line.split()[1])

    def descriptors(self) -> int:
        """Count open descriptors, including connections, but without files that SQLite opens and
        closes.
        """
        return sum(".sqlite" not in _opened(one) for one in Path(f"/proc/{self.pid}/fd").iterdir())


def _opened(descriptor: Path) -> str:
    """Return the path or socket of a descriptor; "" if it was closed meanwhile."""
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:
        return ""


@pytest.fixture(scope="module")
def fortress(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fortress]:
    data = tmp_path_factory.mktemp("data")
    keys = asyncio.run(ensure_first_start(data, clock=time.time))
    config = config_of(tiny_model, data, port=free_port(), bounds=BOUNDS)
    with gateways(config, 1) as [pid]:
        asyncio.run(until_up(config.port))
        attacker, bystander = (
            Target(config.port, key or "", MODEL) for key in (keys.demo_key, keys.demo2_key)
        )
        asyncio.run(ask(bystander))
        yield Fortress(pid, attacker, bystander, keys.admin_key)


async def besiege(fortress: Fortress, name: str) -> tuple[int, float]:
    """Attack many times; return the number of the bystander's answers, and the greatest memory."""
    over = asyncio.Event()

    async def ask_on() -> tuple[int, float]:
        answered, most = 0, 0.0
        while not over.is_set() or not answered:
            await ask(fortress.bystander)
            await asyncio.sleep(0.01)
            answered, most = answered + 1, max(most, resident_mib(fortress.pid))
        return answered, most

    asking = asyncio.create_task(ask_on())
    await asyncio.gather(*(ATTACKS[name](fortress.attacker) for _ in range(TIMES.get(name, 8))))
    over.set()
    return await asking


@pytest.mark.parametrize("name", ATTACKS)
def test_a_bystander_is_answered_and_nothing_is_left(fortress: Fortress, name: str) -> None:
    before, descriptors = resident_mib(fortress.pid), fortress.descriptors()
    answered, most = asyncio.run(asyncio.wait_for(besiege(fortress, name), 60))
    assert answered > 0
    assert most - before < MOST_MIB
    wait_for(lambda: fortress.running() == 0, 20)
    wait_for(lambda: fortress.descriptors() <= descriptors, 20)
    assert resident_mib(fortress.pid) - before < MOST_MIB
