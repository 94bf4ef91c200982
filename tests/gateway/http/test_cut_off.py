"""Requests are cut off when the gateway's grace period ends, or when their key ends."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.link.messages import Generate
from gateway.auth import running_requests
from gateway.state.home import STATE_FILE
from gateway.state.sqlite.store import SqliteStore
from gateway.tenant_limits import Prices, TokenCounts
from tests.doubles.engine.fake_engine import FakeEngine, Pace, hanging_at, saying
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.doubles.waiting import wait_for

TOLD = 3
CHECK_EVERY_S = 0.1


@pytest.fixture(scope="module", autouse=True)
def _often() -> Iterator[None]:
    """Check the keys of running requests often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_requests, "CHECK_EVERY_S", CHECK_EVERY_S)
        yield


def hanging_after(position: int, told: threading.Event) -> Pace:
    """Send `position` tokens, set `told`, and send nothing more until the request is cancelled."""

    async def pace(_: Generate, at: int) -> None:
        if at >= position:
            told.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    return pace


def ask(served: Served, *, stream: bool, key: str = "") -> httpx.Response:
    body: dict[str, Any] = {"model": MODEL, "prompt": "abcdefgh", "stream": stream}
    headers = {"authorization": f"Bearer {key or served.key}"}
    return httpx.post(f"{served.url}/v1/completions", json=body, headers=headers, timeout=60)


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
    grace_s = 600.0 if hurried else 0.3
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


@dataclass
class Office:
    """The operator's actions over HTTP."""

    served: Served

    def call(self, method: str, path: str, body: object = None) -> Any:
        headers = {"authorization": f"Bearer {self.served.admin_key}"}
        url = f"{self.served.url}/admin/tenants{path}"
        answer = httpx.request(method, url, json=body, headers=headers, timeout=60)
        assert answer.is_success, answer.text
        return answer.json()

    def tenant(self, **settings: object) -> str:
        name = f"tenant-{uuid.uuid4().hex}"
        return str(self.call("POST", "", {"name": name, **settings})["id"])

    def key(self, tenant_id: str, **settings: object) -> dict[str, Any]:
        issued: dict[str, Any] = self.call("POST", f"/{tenant_id}/keys", settings)
        return issued


def revoked(office: Office, tenant_id: str, key_id: str) -> None:
    office.call("DELETE", f"/{tenant_id}/keys/{key_id}")


def rotated(office: Office, tenant_id: str, key_id: str) -> None:
    office.call("POST", f"/{tenant_id}/keys/{key_id}/rotate", {})


def expired(office: Office, tenant_id: str, key_id: str) -> None:
    office.call("POST", f"/{tenant_id}/keys/{key_id}/rotate", {"overlap_s": 0.5})


def disabled(office: Office, tenant_id: str, _: str) -> None:
    office.call("PATCH", f"/{tenant_id}", {"disabled": True})


def deleted(office: Office, tenant_id: str, _: str) -> None:
    office.call("DELETE", f"/{tenant_id}")


INVALID = 401, "invalid_request_error", "invalid_api_key"
DISABLED = 403, "permission_error", "tenant_disabled"


@pytest.mark.parametrize(
    ("end", "refusal"),
    [
        (revoked, INVALID),
        (rotated, INVALID),
        (expired, INVALID),
        (disabled, DISABLED),
        (deleted, INVALID),
    ],
)
def test_a_request_whose_key_ends_gets_the_error_of_a_new_one_and_is_counted(
    module_engine: FakeEngine,
    served: Served,
    end: Callable[[Office, str, str], None],
    refusal: tuple[int, str, str],
) -> None:
    module_engine.reset()
    module_engine.pace = hanging_at(TOLD)
    status, kind, code = refusal
    office = Office(served)
    tenant_id, neighbour = office.tenant(), office.tenant()
    doomed, other = office.key(tenant_id), office.key(neighbour)
    with ThreadPoolExecutor(3) as pool:
        streamed = pool.submit(ask, served, stream=True, key=doomed["key"])
        whole = pool.submit(ask, served, stream=False, key=doomed["key"])
        control = pool.submit(ask, served, stream=True, key=other["key"])
        assert module_engine.wait_until(lambda engine: engine.running == 3)
        end(office, tenant_id, doomed["record"]["id"])
        answer = whole.result(20)
        assert answer.status_code == status
        assert (answer.json()["error"]["type"], answer.json()["error"]["code"]) == (kind, code)
        text = streamed.result(20).text
        assert "[DONE]" not in text
        error = json.loads(text.strip().rpartition("data: ")[2])["error"]
        assert (error["type"], error["code"]) == (kind, code)
        assert module_engine.wait_until(lambda engine: engine.running == 1), "it computes no more"
        assert not control.done(), "the control: another tenant's goes on"
        assert ask(served, stream=False, key=doomed["key"]).status_code == status
        office.call("DELETE", f"/{neighbour}")
        control.result(20)
    assert module_engine.cancelled == 3
    assert served.wait_idle()
    wait_for(lambda: spent(served, tenant_id) == (2, 2 * TOLD), 10.0)


def spent(served: Served, tenant_id: str) -> tuple[int, int]:
    """Return the requests and generated tokens in the tenant's usage."""
    headers = {"authorization": f"Bearer {served.admin_key}"}
    url = f"{served.url}/admin/usage?tenant={tenant_id}"
    rows = httpx.get(url, headers=headers, timeout=60).json()["usage"]
    names = "requests", "generated_tokens"
    requests, generated = (sum(row[name] for row in rows) for name in names)
    return requests, generated


def test_a_key_that_ends_while_its_body_is_awaited_lets_nothing_in(
    served: Served, engine: FakeEngine
) -> None:
    office = Office(served)
    tenant_id = office.tenant()
    issued = office.key(tenant_id)
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {issued['key']}\r\ncontent-length: 1000\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
        connection.sendall(head.encode() + b'{"model":')
        revoked(office, tenant_id, issued["record"]["id"])
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert engine.requests == []


def test_a_reader_that_takes_nothing_cannot_keep_the_engine_busy(
    served: Served, engine: FakeEngine
) -> None:
    """Bound the engine's work for a client that reads nothing: the answer waits for the client, the
    engine does not.
    """
    office = Office(served)
    tenant_id = office.tenant()
    issued = office.key(tenant_id)
    engine.script, engine.pace = saying("x" * 4000), hanging_at(100)
    many = {"model": MODEL, "prompt": "hi", "stream": True, "n": 16, "logprobs": 5}
    body = json.dumps(many | {"max_tokens": 4000}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {issued['key']}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", served.port))
        connection.sendall(head.encode() + body)
        assert engine.wait_until(lambda engine: engine.running == 16)
        revoked(office, tenant_id, issued["record"]["id"])
        assert engine.wait_until(lambda engine: engine.running == 0)
    assert engine.cancelled == 16
    assert served.wait_idle()


def test_what_was_reserved_may_be_used_although_the_budget_is_spent_meanwhile(
    served: Served, engine: FakeEngine
) -> None:
    """Let a request use its reservation, though the budget is spent meanwhile.

    A budget refuses a request that does not fit. It ends no request that fitted when it arrived.
    """
    office, go = Office(served), threading.Event()
    # the greatest cost of one request
    most = Prices().cost(TokenCounts(computed=len("abcdefgh") + 1, generated=16))
    tenant_id = office.tenant(limits={"budget": {"units": 2 * most / 1e6}})
    key = office.key(tenant_id)["key"]

    async def pace(request: Generate, at: int) -> None:
        while request is engine.requests[0] and at >= TOLD and not go.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)

    engine.pace = pace
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, served, stream=True, key=key)
        assert engine.wait_until(lambda engine: engine.running == 1)
        assert ask(served, stream=False, key=key).status_code == 200, "the rest is spent"
        refused = ask(served, stream=False, key=key)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
        time.sleep(2 * CHECK_EVERY_S)
        assert not first.done()
        go.set()
        assert first.result(20).text.endswith("data: [DONE]\n\n")


def test_a_request_that_ends_within_the_grace_is_not_cut_off(
    tiny_model: Path, tmp_path: Path
) -> None:
    engine = FakeEngine()
    with serving(config_of(tiny_model, tmp_path), engine) as served:
        answer = ask(served, stream=True)
        served.server.should_exit = True
    assert answer.text.endswith("data: [DONE]\n\n")
    # plus BOS and the first generated token
    assert asyncio.run(generated(tmp_path)) == [len("abcdefgh") + 2]
