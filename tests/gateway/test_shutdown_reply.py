"""Requests that the end of a gateway's grace cuts off."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.messages import Generate
from gateway.state.home import STATE_FILE
from gateway.state.sqlite import SqliteStore
from tests.doubles.fake_engine import FakeEngine, Pace
from tests.doubles.served import MODEL, Served, config_of, serving

TOLD = 3


def hanging_after(position: int, told: threading.Event) -> Pace:
    """Tell `position` tokens, say so, and then nothing more until the request is cancelled."""

    async def pace(_: Generate, at: int) -> None:
        if at >= position:
            told.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    return pace


def ask(served: Served, *, stream: bool) -> httpx.Response:
    body: dict[str, Any] = {"model": MODEL, "prompt": "abcdefgh", "stream": stream}
    headers = {"authorization": f"Bearer {served.key}"}
    return httpx.post(f"{served.url}/v1/completions", json=body, headers=headers, timeout=20)


async def generated(data_dir: Path) -> list[int]:
    store = SqliteStore(data_dir / STATE_FILE)
    try:
        rows = await store.usage("2000-01-01", "2999-01-01")
    finally:
        await store.close()
    return [row.counters.generated_tokens for row in rows]


@pytest.mark.parametrize("hurried", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_cut_off_by_shutdown_gets_an_error_and_is_counted(
    tiny_model: Path, tmp_path: Path, stream: bool, hurried: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine, told = FakeEngine(), threading.Event()
    engine.pace = hanging_after(TOLD, told)
    grace_s = 600.0 if hurried else 1.0
    config = config_of(tiny_model, tmp_path, grace_s=grace_s)
    with ThreadPoolExecutor(1) as pool, serving(config, engine) as served:
        asking = pool.submit(ask, served, stream=stream)
        assert told.wait(20)
        served.server.should_exit = True
        served.server.force_exit = hurried
        answer = asking.result(20)
    if stream:
        last = answer.text.strip().rpartition("data: ")[2]
        assert (answer.status_code, last.count("[DONE]")) == (200, 0)
        error = json.loads(last)["error"]
    else:
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "shutting_down")
    assert asyncio.run(generated(tmp_path)) == [TOLD]
    assert not [record for record in caplog.records if record.exc_info]


def test_a_request_that_ends_within_the_grace_is_not_cut_off(
    tiny_model: Path, tmp_path: Path
) -> None:
    engine = FakeEngine()
    with serving(config_of(tiny_model, tmp_path), engine) as served:
        answer = ask(served, stream=True)
        served.server.should_exit = True
    assert answer.text.endswith("data: [DONE]\n\n")
    assert asyncio.run(generated(tmp_path)) == [len("abcdefgh") + 2]  # and the first and the last
