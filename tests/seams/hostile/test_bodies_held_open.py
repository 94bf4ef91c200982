"""Request bodies that never end use bounded memory and are refused with an answer.

A tenant with or without a low rate limit sends them. A neighbour's request is answered meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config import Bounds
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.engine.tiny_model import write_tiny_model
from tests.doubles.gateway.attacks import Target, ask, unfinished_bodies, unfinished_body
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.doubles.processes import resident_mib
from tests.seams.support.server import Server

MOST_MIB = 256
MIB = 1 << 20
HANG_S = 60.0


async def all_but(most: int, bodies: set[asyncio.Task[bytes]]) -> set[asyncio.Task[bytes]]:
    """Wait until at most `most` bodies are still held, and return these."""
    held = bodies
    while len(held) > most:
        _, held = await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
    return held


async def leave(held: set[asyncio.Task[bytes]]) -> None:
    for one in held:
        one.cancel()
    await asyncio.gather(*held, return_exceptions=True)


def limited(server: Server, **limits: int) -> str:
    """Create a tenant with these limits; return its key."""
    key = server.new_tenant()
    with server.client(server.admin_key) as client:
        newest = client.get("/admin/tenants").json()["tenants"][-1]["id"]
        client.patch(f"/admin/tenants/{newest}", json={"limits": limits}).raise_for_status()
    return key


def test_100_bodies_of_a_tenant_at_its_limits_are_refused_unread(server: Server) -> None:
    port, gateway = int(server.url.rsplit(":", 1)[1]), server.children()["gateway"]
    attacker = Target(port, limited(server, requests_per_minute=1, max_concurrent=1), "handbook")
    victim = Target(port, server.demo2_key, "handbook")
    before = resident_mib(gateway)

    async def attack() -> tuple[Counter[bytes], float]:
        bodies = {asyncio.create_task(unfinished_body(attacker, hold_s=HANG_S)) for _ in range(100)}
        await asyncio.sleep(0.5)
        await asyncio.wait_for(ask(victim), 30)
        most = resident_mib(gateway)
        held = await all_but(1, bodies)
        await leave(held)
        return Counter(one.result()[9:12] for one in bodies - held), most

    statuses, most = asyncio.run(asyncio.wait_for(attack(), 60))
    assert statuses[b"429"] >= 99
    assert most - before < MOST_MIB
    # The admitted body has ended. A later request by itself is refused only because of the rate
    # limit.
    assert asyncio.run(unfinished_bodies(attacker, 1, hold_s=10.0))[0].startswith(b"HTTP/1.1 429 ")


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Served]:
    """Run a gateway with memory for two bodies of a tenant and four bodies in all."""
    bounds = Bounds(
        max_body_bytes=16 * MIB,
        max_tenant_body_bytes=32 * MIB,
        max_all_body_bytes=48 * MIB,
        body_wait_s=0.5,
    )
    config = config_of(write_tiny_model(tmp_path / "tiny"), tmp_path / "data", bounds=bounds)
    with serving(config, FakeEngine()) as running:
        yield running


def test_bodies_that_wait_for_room_are_refused_and_leave_room_to_small_ones(narrow: Served) -> None:
    attacker, other = (Target(narrow.port, key, MODEL) for key in (narrow.key, narrow.other_key))

    async def attack() -> tuple[Counter[bytes], Counter[bytes]]:
        bodies = {asyncio.create_task(unfinished_body(attacker, hold_s=HANG_S)) for _ in range(6)}
        held = await all_but(2, bodies)
        for_all = await unfinished_bodies(other, 1, hold_s=HANG_S)
        await asyncio.wait_for(ask(other), HANG_S)  # there is still room for a small body
        assert not any(one.done() for one in held)
        await leave(held)
        own = Counter(one.result()[9:12] for one in bodies - held)
        return own, Counter(line[9:12] for line in for_all)

    own, of_all = asyncio.run(attack())
    assert own == {b"429": 4}
    assert of_all == {b"503": 1}
    assert narrow.wait_idle()

    async def again() -> list[bytes]:
        return await unfinished_bodies(attacker, 2, hold_s=1.5)

    # positive control: the room of the held bodies is free again
    assert asyncio.run(again()) == [b"", b""]
