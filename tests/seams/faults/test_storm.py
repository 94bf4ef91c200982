"""Masses of malformed, impossible and abandoned requests get one answer each, and lose no block."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx
import pytest

from tests.doubles.waiting import wait_for
from tests.seams.support.server import Server

GOOD = {"model": "handbook", "prompt": list(range(300, 330)), "max_tokens": 4, "temperature": 0}
BAD_FIELDS: list[dict[str, Any]] = [
    {"prompt": []},
    {"prompt": ""},
    {"prompt": [-1]},
    {"prompt": [10**9]},
    {"prompt": [1] * 5000},
    {"prompt": {"a": 1}},
    {"n": 0},
    {"n": 10**9},
    {"max_tokens": -1},
    {"max_tokens": "many"},
    {"temperature": -1},
    {"temperature": "hot"},
    {"top_p": 0},
    {"logit_bias": {"x": 1}},
    {"logprobs": 10**6},
    {"stop": ["x"] * 100},
    {"model": "nothing"},
    {"seed": 2**70},
    {"stream": "yes"},
]
RAW_BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'{"model": NaN}',
    b'{"model": "handbook", "prompt": "x", "temperature": 1e999}',
    b'{"model": "handbook", "prompt": "\\ud800"}',
    b'{"model": "handbook", "prompt": "\xff"}',
    b"\xef\xbb\xbf{}",
    '{"model": "handbook"}'.encode("utf-16"),
    b"[" * 100_000,
    b'{"n": ' + b"9" * 10_000 + b"}",
]


async def _post(client: httpx.AsyncClient, body: bytes) -> httpx.Response:
    return await client.post(
        "/v1/completions", content=body, headers={"Content-Type": "application/json"}
    )


async def _abandon(client: httpx.AsyncClient) -> None:
    """Open a long stream, read a little, and disconnect."""
    body = GOOD | {"stream": True, "max_tokens": 2000, "ignore_eos": True}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        async for _ in answer.aiter_lines():
            return


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_request_has_one_answer_and_no_block_is_lost(server: Server, seed: int) -> None:
    rng = random.Random(seed)
    bodies = [json.dumps(GOOD | bad).encode() for bad in BAD_FIELDS] + RAW_BODIES
    rng.shuffle(bodies)
    headers = {"Authorization": f"Bearer {server.demo_key}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
        abandoned = asyncio.gather(*(_abandon(client) for _ in range(8)))
        good = [_post(client, json.dumps(GOOD).encode()) for _ in range(16)]
        answers = await asyncio.gather(*(_post(client, body) for body in bodies), *good)
        await abandoned
    for body, answer in zip(bodies, answers, strict=False):
        assert answer.status_code in (400, 404), (body[:60], answer.text)
        error = answer.json()["error"]
        assert error["message"]
        assert error["type"]
    for answer in answers[len(bodies) :]:
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 4
    wait_for(lambda: server.stats()["queue"] == {"running": 0, "waiting": 0}, 20)
    with server.client(server.admin_key) as admin:
        admin.post("/admin/cache/flush").raise_for_status()
    pool = server.pool()
    assert pool["leased"] == 0
    assert pool["free"] == pool["total"]
