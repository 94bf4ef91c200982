"""Three engines behind one gateway, under load: each is killed, then frozen, then all restarted.

The model is tiny and untrained: what a prompt gives is noise, the same from every engine. Few
sequences run at once, so that some requests have begun and others wait whenever something happens.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import pytest

from cli.isolation.cases import CASES
from tests.cli.console import Console
from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.waiting import until, wait_for
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
PROMPTS = 9
AT_ONCE = 12  # requests, on three engines that run two at once
TOKENS = 100  # of an answer
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("fleet")
    model = write_tiny_model(directory / "tiny", config=RUNNABLE)
    with running_server(directory / "data", SETTINGS | {"RATOON_MODEL": str(model)}) as server:
        wait_for(lambda: all_ready(server), WITHIN_S)
        yield server


@pytest.fixture(scope="module")
def right(fleet: Server) -> list[list[str]]:
    """What each prompt gives, one after the other."""
    with fleet.client() as client:
        answers = [client.post("/v1/completions", json=body(n, TOKENS)) for n in range(PROMPTS)]
    return [one.json()["choices"][0]["logprobs"]["tokens"] for one in answers]


def states(server: Server) -> dict[str, str]:
    replicas = httpx.get(server.url + "/readyz", timeout=10).json()["replicas"]
    return {name: one["state"] for name, one in replicas.items()}


def all_ready(server: Server) -> bool:
    return states(server) == dict.fromkeys(NAMES, "ready")


def is_in(server: Server, name: str, state: str) -> bool:
    return states(server)[name] == state


def has_ended(running: Sequence[asyncio.Task[Stream]], count: int) -> bool:
    return sum(one.done() for one in running) >= count


def queues(server: Server) -> dict[str, tuple[int, int]]:
    """How many sequences run and wait in each engine that answers."""
    counted = {one["name"]: one["counted"] for one in server.stats()["replicas"]}
    return {
        name: (one["queue"]["running"], one["queue"]["waiting"])
        for name, one in counted.items()
        if one is not None
    }


def engine_ids(server: Server) -> dict[str, str]:
    return {
        one["name"]: one["counted"]["engine_id"]
        for one in server.stats()["replicas"]
        if one["counted"] is not None
    }


def moved(server: Server) -> float:
    """Requests that were sent to another replica."""
    with server.client(server.admin_key) as client:
        lines = client.get("/metrics").text.splitlines()
    named = [line for line in lines if line.startswith("ratoon_requests_moved_total{")]
    return sum(float(line.split()[-1]) for line in named)


@dataclass
class Stream:
    """One streamed answer, as far as it has come."""

    number: int
    tokens: list[str] = field(default_factory=list)
    error: str | None = None
    is_done: bool = False

    def see(self, line: str) -> None:
        if not line.startswith("data: "):
            return
        if line == "data: [DONE]":
            self.is_done = True
            return
        said = json.loads(line[6:])
        if "error" in said:
            self.error = said["error"]["code"]
        for choice in said.get("choices", []):
            if choice["logprobs"] is not None:
                self.tokens += choice["logprobs"]["tokens"]


def body(number: int, max_tokens: int) -> dict[str, Any]:
    prompt = [65 + number % PROMPTS] * 20 + list(range(65, 113))
    return {
        "model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": True, "logprobs": 0,
    }  # fmt: skip


class Load:
    """Streams of one tenant."""

    def __init__(self, server: Server, key: str) -> None:
        self.server = server
        self.streams: list[Stream] = []
        self._client = httpx.AsyncClient(
            base_url=server.url, headers={"Authorization": f"Bearer {key}"}, timeout=WITHIN_S
        )

    async def ask(self, number: int) -> Stream:
        stream = Stream(number)
        self.streams.append(stream)
        asked = body(number, TOKENS) | {"stream": True}
        async with self._client.stream("POST", "/v1/completions", json=asked) as answer:
            if answer.status_code != 200:
                stream.error = (await answer.aread()).decode()
            else:
                async for line in answer.aiter_lines():
                    stream.see(line)
        return stream

    async def until_waits_in(self, name: str) -> list[asyncio.Task[Stream]]:
        """Ask until one request has begun there and another one waits; what is under way then.

        Where a request goes is the router's affair: if all are over without it, more are asked.
        """
        running: list[asyncio.Task[Stream]] = []
        async with asyncio.timeout(WITHIN_S):
            while True:
                if all(one.done() for one in running):
                    numbers = range(len(self.streams), len(self.streams) + AT_ONCE)
                    running = [asyncio.create_task(self.ask(number)) for number in numbers]
                runs, waits = (await asyncio.to_thread(queues, self.server)).get(name, (0, 0))
                if runs and waits and any(one.tokens for one in self.streams[-AT_ONCE:]):
                    return running
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        await self._client.aclose()


def cached(server: Server, number: int) -> int:
    """How many tokens of a prompt the replica has that has most of it."""
    asked = {"url": "/v1/completions", "body": body(number, 1)}
    with server.client() as client:
        found: int = client.post("/v1/cache/probe", json=asked).json()["cached_tokens"]
    return found


def hit_rate(server: Server, key: str) -> float:
    """The share of a tenant's prompts that is found, when all have been asked once before."""
    with server.client(key) as client:
        for number in range(PROMPTS):
            client.post("/v1/completions", json=body(number, 1))
        answers = [client.post("/v1/completions", json=body(n, 1)) for n in range(PROMPTS)]
    usages = [one.json()["usage"] for one in answers]
    found = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return float(found / sum(usage["prompt_tokens"] for usage in usages))


def lost(streams: Sequence[Stream]) -> list[Stream]:
    """Those that failed though nothing of them had been sent."""
    return [one for one in streams if one.error is not None and not one.tokens]


def wrong(streams: Sequence[Stream], right: list[list[str]]) -> list[Stream]:
    """Those that were told another answer than theirs, too much, or no end."""
    return [
        one
        for one in streams
        if one.tokens != right[one.number % PROMPTS][: len(one.tokens)]
        or one.is_done != (one.error is None)
        or (one.is_done and len(one.tokens) != TOKENS)
    ]


def used(server: Server, key: str) -> dict[str, int]:
    with server.client(key) as client:
        days = client.get("/v1/usage").json()["usage"]
    return {name: sum(day[name] for day in days) for name in ("requests", "generated_tokens")}


def shares(server: Server) -> list[tuple[int, int]]:
    """Each tenant's floor and ceiling on the device, in the engines that know it."""
    tiers = [one["tiers"].get("device") for one in server.stats()["tenants"]]
    return [(tier["floor"], tier["ceiling"]) for tier in tiers if tier is not None]


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
        await until(partial(is_in, fleet, name, "absent"), 10)
        assert fleet.is_ready(), "the others serve"
        await asyncio.gather(*running)
        await until(lambda: all_ready(fleet), WITHIN_S)
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


async def test_a_frozen_one_loses_what_waits_there_and_goes_on_with_what_it_has_begun(
    fleet: Server, right: list[list[str]]
) -> None:
    pids = fleet.engines()
    for name in NAMES:
        load, before = Load(fleet, fleet.new_tenant()), moved(fleet)
        running = await load.until_waits_in(name)
        os.kill(pids[name], signal.SIGSTOP)
        try:
            await until(partial(is_in, fleet, name, "stalled"), 20)
            assert fleet.is_ready(), "the others serve"
            # At most those go on waiting that it had begun: two run at once.
            await until(partial(has_ended, running, AT_ONCE - 2), WITHIN_S)
            assert states(fleet)[name] == "stalled"
        finally:
            os.kill(pids[name], signal.SIGCONT)
        await asyncio.gather(*running)
        await load.close()
        assert [one.error for one in load.streams] == [None] * len(load.streams)
        assert wrong(load.streams, right) == []
        assert moved(fleet) > before
        await until(lambda: all_ready(fleet), 20)
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
    await until(lambda: all_ready(fleet), 20)
    assert not set(ids.values()) & set(engine_ids(fleet).values())
    assert [one.error for one in load.streams] == [None] * number
    assert wrong(load.streams, right) == []
    assert cached(fleet, 8) >= 64, "its disk has what it knew"
    assert shares(fleet)
    for floor, ceiling in shares(fleet):
        assert floor == ceiling > 0, "new engines have been sent the tenants' parts"


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


def test_tenants_stay_apart(fleet: Server) -> None:
    target = ("--url", fleet.url, "--admin-key", fleet.admin_key, "--quick", "--json")
    few = ("--tiers", "device", "--samples", "0", "--eviction-trials", "0")
    printed = Console().type("verify-isolation", *target, *few)
    found = [one for one in printed.json["findings"] if one["tier"] == "device"]
    assert len(found) >= len(CASES)
    assert {one["outcome"] for one in found} <= {"passed", "allowed"}
    assert all(one["control_full"] for one in found)
