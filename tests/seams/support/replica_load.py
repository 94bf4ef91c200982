"""Streams of one tenant over several replicas, and checks of their answers.

The model is tiny and untrained: its answers are noise, but equal on every engine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.doubles.waiting import until
from tests.seams.support.server import Front

PROMPTS = 9
AT_ONCE = 12  # number of concurrent requests, on three engines that run two requests each
TOKENS = 100  # tokens of an answer
WITHIN_S = 60.0


def states(server: Front) -> dict[str, str]:
    replicas = httpx.get(server.url + "/readyz", timeout=10).json().get("replicas", {})
    return {name: one["state"] for name, one in replicas.items()}


async def seen(is_so: Callable[[], bool], timeout_s: float) -> None:
    """Wait until `is_so()` is true. It asks servers, so it is called only ten times a second."""
    await until(is_so, timeout_s, every_s=0.1)


def is_in(server: Front, name: str, state: str) -> bool:
    return states(server).get(name) == state


def has_ended(running: Sequence[asyncio.Task[Stream]], count: int) -> bool:
    return sum(one.done() for one in running) >= count


def queues(server: Front) -> dict[str, tuple[int, int]]:
    """Return the numbers of running and waiting sequences in each engine that answers."""
    counted = {one["name"]: one["counted"] for one in server.stats()["replicas"]}
    return {
        name: (one["queue"]["running"], one["queue"]["waiting"])
        for name, one in counted.items()
        if one is not None
    }


def moved(server: Front) -> float:
    """Count the requests that were moved to another replica."""
    with server.client(server.admin_key) as client:
        lines = client.get("/metrics").text.splitlines()
    named = [line for line in lines if line.startswith("ratoon_requests_moved_total{")]
    return sum(float(line.split()[-1]) for line in named)


@dataclass
class Stream:
    """The received part of one streamed answer."""

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
    """A load of concurrent streams of one tenant."""

    def __init__(self, server: Front, key: str) -> None:
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
        """Send requests until one runs in engine `name` and another waits there. Return the tasks.

        The router chooses the engines. So if all requests end before, more requests are sent.
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


def cached(server: Front, number: int, key: str | None = None) -> int:
    """Return a prompt's cached tokens on the replica that has the most."""
    asked = {"url": "/v1/completions", "body": body(number, 1)}
    with server.client(key) as client:
        found: int = client.post("/v1/cache/probe", json=asked).json()["cached_tokens"]
    return found


def hit_rate(server: Front, key: str, prompts: int = PROMPTS) -> float:
    """Send all of a tenant's prompts twice. Return the cached share of tokens the second time."""
    with server.client(key) as client:
        for number in range(prompts):
            client.post("/v1/completions", json=body(number, 1))
        answers = [client.post("/v1/completions", json=body(n, 1)) for n in range(prompts)]
    usages = [one.json()["usage"] for one in answers]
    found = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return float(found / sum(usage["prompt_tokens"] for usage in usages))


def lost(streams: Sequence[Stream]) -> list[Stream]:
    """Return the streams that failed before any token was sent."""
    return [one for one in streams if one.error is not None and not one.tokens]


def wrong(streams: Sequence[Stream], right: list[list[str]]) -> list[Stream]:
    """Return the streams with wrong tokens, a wrong length, or no end."""
    return [
        one
        for one in streams
        if one.tokens != right[one.number % PROMPTS][: len(one.tokens)]
        or one.is_done != (one.error is None)
        or (one.is_done and len(one.tokens) != TOKENS)
    ]


def used(server: Front, key: str) -> dict[str, int]:
    with server.client(key) as client:
        days = client.get("/v1/usage").json()["usage"]
    return {name: sum(day[name] for day in days) for name in ("requests", "generated_tokens")}


def shares(server: Front) -> list[tuple[int, int]]:
    """Return each tenant's floor and ceiling on the device, in the engines that know the tenant."""
    tiers = [one["tiers"].get("device") for one in server.stats()["tenants"]]
    return [(tier["floor"], tier["ceiling"]) for tier in tiers if tier is not None]
