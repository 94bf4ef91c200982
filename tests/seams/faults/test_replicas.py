"""Three engines behind one gateway, under load: each is killed, then frozen, then restarted.

The model is tiny and untrained: answers are noise, but equal on every engine. Few sequences run at
once, so that at any moment some requests have begun and others wait.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from tests.cli.console import Console
from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.waiting import wait_for
from tests.seams.support.replica_load import (
    AT_ONCE,
    PROMPTS,
    TOKENS,
    WITHIN_S,
    Load,
    body,
    cached,
    has_ended,
    hit_rate,
    is_in,
    lost,
    moved,
    queues,
    seen,
    shares,
    states,
    used,
    wrong,
)
from tests.seams.support.server import Server, running_server

SETTINGS = {
    "RATOON_REPLICAS": "3",
    "RATOON_CACHE_TOKENS": "8192",
    "RATOON_MAX_MODEL_LEN": "1024",
    "RATOON_HOST_CACHE_TOKENS": "6144",
    "RATOON_DISK_CACHE_GIB": "0.3",
    "RATOON_NUM_THREADS": "1",
    "RATOON_LOAD_FORMAT": "dummy",
    "RATOON_MAX_RUNNING": "2",
}
NAMES = ("0", "1", "2")
CROWD = 24  # number of requests of one tenant; all engines together run six at once


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("fleet")
    model = write_tiny_model(directory / "tiny", config=RUNNABLE)
    with running_server(directory / "data", SETTINGS | {"RATOON_MODEL": str(model)}) as server:
        wait_for(lambda: all_ready(server), WITHIN_S)
        yield server


@pytest.fixture(scope="module")
def right(fleet: Server) -> list[list[str]]:
    """Return each prompt's answer, one after the other."""
    with fleet.client() as client:
        answers = [client.post("/v1/completions", json=body(n, TOKENS)) for n in range(PROMPTS)]
    return [one.json()["choices"][0]["logprobs"]["tokens"] for one in answers]


def all_ready(server: Server) -> bool:
    return states(server) == dict.fromkeys(NAMES, "ready")


def engine_ids(server: Server) -> dict[str, str]:
    return {
        one["name"]: one["counted"]["engine_id"]
        for one in server.stats()["replicas"]
        if one["counted"] is not None
    }


async def test_each_is_killed_in_turn_and_nothing_is_lost_that_had_not_begun(
    fleet: Server, right: list[list[str]]
) -> None:
    key, repeating = fleet.new_tenant(), fleet.new_tenant()
    load, rate = Load(fleet, key), hit_rate(fleet, repeating)
    assert rate > 0.5
    for name in NAMES:
        running = await load.until_waits_in(name)
        killed = fleet.engines()[name]
        os.kill(killed, signal.SIGKILL)
        await seen(partial(is_in, fleet, name, "absent"), 10)
        assert fleet.is_ready(), "the others serve"
        await asyncio.gather(*running)
        await seen(lambda: all_ready(fleet), WITHIN_S)
        assert fleet.engines()[name] != killed
    await load.close()
    assert lost(load.streams) == []
    assert wrong(load.streams, right) == []
    begun = [one for one in load.streams if one.error is not None]
    assert {one.error for one in begun} <= {"engine_died"}
    assert begun, "the control: some had begun, and were told so"
    assert moved(fleet) >= 3, "the control: some had not"
    wait_for(lambda: used(fleet, key)["requests"] == len(load.streams), 20)
    assert used(fleet, key)["generated_tokens"] == sum(len(one.tokens) for one in load.streams)
    assert sorted(fleet.engines()) == list(NAMES)
    assert hit_rate(fleet, repeating) >= rate - 0.02


async def freeze(fleet: Server, name: str, pid: int, right: list[list[str]]) -> None:
    """Freeze an engine with waiting requests. All are answered, at the latest when it continues."""
    load = Load(fleet, fleet.new_tenant())
    running = await load.until_waits_in(name)
    os.kill(pid, signal.SIGSTOP)
    try:
        await seen(partial(is_in, fleet, name, "stalled"), 20)
        assert fleet.is_ready(), "the others serve"
        # Only requests that had begun, at most two, still wait.
        await seen(partial(has_ended, running, AT_ONCE - 2), WITHIN_S)
        assert states(fleet)[name] == "stalled"
    finally:
        os.kill(pid, signal.SIGCONT)
    await asyncio.gather(*running)
    await load.close()
    assert [one.error for one in load.streams] == [None] * len(load.streams)
    assert wrong(load.streams, right) == []
    await seen(lambda: all_ready(fleet), 20)


async def test_a_frozen_one_loses_what_waits_there_and_goes_on_with_what_it_has_begun(
    fleet: Server, right: list[list[str]]
) -> None:
    pids, name = fleet.engines(), NAMES[1]
    before = moved(fleet)
    for _ in range(3):  # repeated, because waiting requests may have begun before the engine froze
        if moved(fleet) == before:
            await freeze(fleet, name, pids[name], right)
    assert moved(fleet) > before
    assert fleet.engines() == pids, "none was ended"


async def test_all_are_restarted_one_after_the_other_and_nothing_is_lost(
    fleet: Server, right: list[list[str]]
) -> None:
    ids, load = engine_ids(fleet), Load(fleet, fleet.new_tenant())
    with fleet.client() as client:
        client.post("/v1/completions", json=body(8, 1)).raise_for_status()
    target = ("--data-dir", str(fleet.data_dir), "--url", fleet.url)
    restart = asyncio.create_task(asyncio.to_thread(Console().type, "restart", "--json", *target))
    number = 0
    while not restart.done():
        await asyncio.gather(*(load.ask(number + more) for more in range(4)))
        number += 4
        await asyncio.sleep(0.3)
    await load.close()
    printed = await restart
    assert printed.status == 0, printed.err
    assert printed.json == {"restarted": list(NAMES)}
    await seen(lambda: all_ready(fleet), 20)
    assert not set(ids.values()) & set(engine_ids(fleet).values())
    assert [one.error for one in load.streams] == [None] * number
    assert wrong(load.streams, right) == []
    assert cached(fleet, 8) >= 64, "its disk has what it knew"
    assert shares(fleet)
    for floor, ceiling in shares(fleet):
        assert floor == ceiling > 0, "new engines have been sent the tenants' parts"


async def test_a_tenant_with_few_requests_does_not_wait_for_one_with_many(
    fleet: Server, right: list[list[str]]
) -> None:
    many, few = Load(fleet, fleet.new_tenant()), Load(fleet, fleet.new_tenant())
    crowd = [asyncio.create_task(many.ask(number)) for number in range(CROWD)]
    await seen(lambda: sum(waiting for _, waiting in queues(fleet).values()) >= CROWD // 2, 20)
    last = asyncio.create_task(many.ask(CROWD))
    await asyncio.gather(*(few.ask(number) for number in range(len(NAMES))))
    left = sum(not one.done() for one in crowd)
    assert not last.done(), "the control: who has many waits for his own"
    await asyncio.gather(*crowd, last)
    await asyncio.gather(many.close(), few.close())
    assert left >= CROWD // 4
    streams = [*many.streams, *few.streams]
    assert [one.error for one in streams] == [None] * len(streams)
    assert wrong(streams, right) == []


def test_limits_hold_over_all(fleet: Server) -> None:
    key = fleet.new_tenant()
    with fleet.client(fleet.admin_key) as client:
        tenants = client.get("/admin/tenants").json()["tenants"]
        made = client.patch(
            f"/admin/tenants/{tenants[-1]['id']}", json={"limits": {"requests_per_minute": 5}}
        )
        made.raise_for_status()
    with fleet.client(key) as client:
        statuses = [
            client.post("/v1/completions", json=body(number, 1)).status_code for number in range(8)
        ]
    assert statuses == [200] * 5 + [429] * 3
