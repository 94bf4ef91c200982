"""Requests beyond those that may wait are refused at once, and the others are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from tests.doubles.waiting import wait_for
from tests.seams.support.server import Server, running_server


@pytest.fixture
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"RATOON_MAX_RUNNING": "1", "RATOON_MAX_WAITING": "2"}
    with running_server(tmp_path_factory.mktemp("narrow") / "data", settings) as running:
        yield running


async def test_the_surplus_is_told_to_retry(narrow: Server) -> None:
    headers = {"Authorization": f"Bearer {narrow.demo_key}"}
    body = {"model": "handbook", "max_tokens": 50, "temperature": 0, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=narrow.url, headers=headers, timeout=60) as client:
        answers = await asyncio.gather(
            *(
                client.post("/v1/completions", json=body | {"prompt": [300 + number] * 20})
                for number in range(12)
            )
        )
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= 2
        for answer in answers:
            if answer.status_code == 429:
                assert float(answer.headers["retry-after"]) > 0
                assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        wait_for(lambda: narrow.stats()["queue"] == {"running": 0, "waiting": 0}, 20)
        again = await client.post("/v1/completions", json=body | {"prompt": [300] * 20})
        assert again.status_code == 200
