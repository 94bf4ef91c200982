"""Two workers with one router process compute each prefix on one of two engines, also after the
router dies.

The model is tiny and untrained.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.processes import children
from tests.doubles.waiting import wait_for
from tests.seams.support.replica_load import states
from tests.seams.support.server import Server, running_server

LIMIT_S = 60.0
TENANTS, EACH = 8, 5
# numbers of tokens; for prefixes of 32 blocks or more, a router predicts where they will be
PREFIX, TAIL = 512, 16
# number of tokens to compute if each prefix is computed once
ONCE = TENANTS * (PREFIX + EACH * TAIL)
# seconds; twice this is short of the three seconds after which an engine counts as stalled
STILL_S = 0.6
# a test is repeated, because on a busy machine the router may answer late, and a worker then routes
# by itself
TRIES = 3
SETTINGS = {
    "RATOON_REPLICAS": "2",
    "RATOON_WORKERS": "2",
    "RATOON_CACHE_TOKENS": "16384",
    "RATOON_CACHE_SHARING": "pooled",  # not partitioned, since there are many tenants
    "RATOON_MAX_MODEL_LEN": "1024",
    "RATOON_NUM_THREADS": "1",
    "RATOON_LOAD_FORMAT": "dummy",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("router")
    model = write_tiny_model(directory / "tiny", config=RUNNABLE)
    with running_server(directory / "data", SETTINGS | {"RATOON_MODEL": str(model)}) as running:
        wait_for(lambda: are_ready(running), LIMIT_S)
        wait_for(lambda: len(gateway_processes(running)) == 3, LIMIT_S)
        yield running


def are_ready(server: Server) -> bool:
    """Return whether both workers report all engines as ready. A poll may reach either worker."""
    port = f":{int(server.url.rpartition(':')[2]):04X} "
    listening = [line for line in Path("/proc/net/tcp").read_text().splitlines() if " 0A " in line]
    if sum(port in line for line in listening) < 2:
        return False
    return all(states(server) == {"0": "ready", "1": "ready"} for _ in range(16))


def gateway_processes(server: Server) -> list[int]:
    """Return the ids of the workers and of the router process."""
    return children(server.children()["gateway"])


def router(server: Server) -> int:
    """Return the router process's id."""
    [found] = [
        pid
        for pid in gateway_processes(server)
        if b"gateway.router_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return found


def counted(server: Server, name: str) -> float:
    """Return a metric's sum over its labels."""
    with server.client(server.admin_key) as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


async def computed(server: Server, seed: int) -> int:
    """Send concurrent requests of all tenants; return the prompt tokens computed for them.

    Each call creates new tenants, so nothing is cached. Each request has its own connection. One
    request of each tenant is sent first, because the order of requests decides how long each queue
    is. Engines are stopped meanwhile, so that no queue is shorter because its engine was faster.
    """
    keys = [server.new_tenant() for _ in range(TENANTS)]

    async def ask(number: int, tenant: int) -> int:
        prefix = [40 + (seed + tenant + at) % 60 for at in range(PREFIX)]
        tail = [40 + (number * at) % 50 for at in range(TAIL)]
        body = {"model": "tiny", "prompt": prefix + tail, "max_tokens": 2, "temperature": 0}
        headers = {"Authorization": f"Bearer {keys[tenant]}"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=LIMIT_S) as http:
            answer = await http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        return int(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])

    asking = []
    with frozen(*server.engines().values()):
        for number in range(TENANTS * EACH):
            asking.append(asyncio.create_task(ask(number, number % TENANTS)))
            if number + 1 in (TENANTS, TENANTS * EACH):
                await asyncio.sleep(STILL_S)
    return sum(await asyncio.gather(*asking))


async def is_computed_once(server: Server, seed: int) -> bool:
    """Return whether, in one of some tries, each prefix was computed about once."""
    for at in range(TRIES):
        if await computed(server, seed + at) < 1.2 * ONCE:
            return True
    return False


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def test_each_prefix_is_computed_once_and_more_often_while_the_router_stands_still(
    server: Server,
) -> None:
    assert await is_computed_once(server, 1)
    before = counted(server, "ratoon_routed_alone_total")
    assert counted(server, "ratoon_cache_snapshots_total") == 2, "of each engine one, for both"
    with frozen(router(server)):
        assert await computed(server, 11) > 1.2 * ONCE, "the control: workers know their own alone"
    alone = counted(server, "ratoon_routed_alone_total") - before
    assert 0 < alone <= TENANTS * EACH
    wait_for(lambda: is_answered(server), LIMIT_S, every_s=0.3)
    assert await is_computed_once(server, 21), "it goes on as if it had been told all along"


def is_answered(server: Server) -> bool:
    """Return whether the router process routed all of some requests."""
    before = counted(server, "ratoon_routed_alone_total")
    for _ in range(8):
        with server.client() as client:
            body = {"model": "tiny", "prompt": [50] * 8, "max_tokens": 1}
            client.post("/v1/completions", json=body).raise_for_status()
    return counted(server, "ratoon_routed_alone_total") == before


async def test_one_that_is_killed_loses_nothing_and_has_a_successor(server: Server) -> None:
    killed = router(server)
    others = set(gateway_processes(server)) - {killed}
    asking = asyncio.create_task(computed(server, 31))
    await asyncio.sleep(0.1)
    os.kill(killed, signal.SIGKILL)
    await asking
    wait_for(lambda: len(gateway_processes(server)) == 3, LIMIT_S)
    assert router(server) != killed
    assert set(gateway_processes(server)) - {router(server)} == others
    wait_for(lambda: is_answered(server), LIMIT_S, every_s=0.3)
    wait_for(lambda: counted(server, "ratoon_replica_known_blocks") > 0, LIMIT_S, every_s=0.3)
    assert await is_computed_once(server, 41)


def test_it_ends_with_the_server(server: Server) -> None:
    """This is the last test of the file, because it ends the server."""
    pid = router(server)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(LIMIT_S) == 0
    assert not Path(f"/proc/{pid}").exists()
