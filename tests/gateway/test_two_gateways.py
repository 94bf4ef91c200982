"""Two gateways on one Redis share keys, published prefixes, usage and revocations.

Both are real, over HTTP, and each has its own engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.doubles.engine.fake_engine import FakeEngine, at_once, hanging_at
from tests.doubles.gateway.redis_server import RedisServer, redis_server
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.doubles.waiting import wait_for

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 4}
WITHIN_S = 20.0


@dataclass
class Pair:
    """Two gateways, and the state that they share."""

    server: RedisServer
    one: Served
    two: Served
    engines: tuple[FakeEngine, FakeEngine]


@pytest.fixture(scope="module")
def pair(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    secrets = tmp_path_factory.mktemp("secrets")
    (secrets / "ratoon_server_secret").write_text("s" * 64)
    (secrets / "ratoon_pepper").write_text("p" * 64)
    (secrets / "ratoon_admin_key").write_text("sk-admin-of-all-gateways")
    (secrets / "redis_password").write_text("hush\n")
    engines = FakeEngine(), FakeEngine()
    with ExitStack() as stack:
        options = ("--requirepass", "hush")
        server = stack.enter_context(redis_server(tmp_path_factory.mktemp("redis"), *options))
        gateways = [
            stack.enter_context(
                serving(
                    config_of(
                        tiny_model,
                        tmp_path_factory.mktemp(f"data-{number}"),
                        redis_url=server.url,
                        redis_password_file=str(secrets / "redis_password"),
                        # seconds; a slow answer on a busy machine must not count as an outage
                        redis_timeout_s=0.5,
                        secrets_dir=str(secrets),
                    ),
                    engine,
                )
            )
            for number, engine in enumerate(engines)
        ]
        yield Pair(server, gateways[0], gateways[1], engines)


def chat(gateway: Served, key: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    url = f"{gateway.url}/v1/chat/completions"
    return httpx.post(url, json=CHAT, headers=headers, timeout=60)


def stream(gateway: Served, key: str) -> str:
    """Read a stream to its end; return its text."""
    headers = {"authorization": f"Bearer {key}"}
    url = f"{gateway.url}/v1/chat/completions"
    return httpx.post(url, json=CHAT | {"stream": True}, headers=headers, timeout=60).text


def admin(gateway: Served, method: str, path: str, **sent: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {gateway.admin_key}"}
    url = f"{gateway.url}/admin{path}"
    return httpx.request(method, url, headers=headers, timeout=60, **sent)  # type: ignore[arg-type]


def test_both_have_the_same_keys(pair: Pair) -> None:
    assert (pair.one.key, pair.one.admin_key) == (pair.two.key, pair.two.admin_key)
    for gateway in (pair.one, pair.two):
        assert chat(gateway, pair.one.key).status_code == 200


def test_what_one_makes_and_revokes_the_other_knows(pair: Pair) -> None:
    tenant = admin(pair.one, "POST", "/tenants", json={"name": "acme"}).json()
    issued = admin(pair.one, "POST", f"/tenants/{tenant['id']}/keys", json={}).json()
    assert chat(pair.two, issued["key"]).status_code == 200
    path = f"/tenants/{tenant['id']}/keys/{issued['record']['id']}"
    assert admin(pair.one, "DELETE", path).status_code == 200
    wait_for(lambda: chat(pair.two, issued["key"]).status_code == 401, 6.0)
    assert chat(pair.two, pair.two.key).status_code == 200


def test_a_stream_of_the_other_ends_when_one_revokes_its_key(pair: Pair) -> None:
    tenant = admin(pair.one, "POST", "/tenants", json={"name": "streaming"}).json()
    doomed, kept = [
        admin(pair.one, "POST", f"/tenants/{tenant['id']}/keys", json={}).json() for _ in range(2)
    ]
    engine = pair.engines[1]
    engine.pace = hanging_at(2)
    with ThreadPoolExecutor(2) as pool:
        streams = [pool.submit(stream, pair.two, key["key"]) for key in (doomed, kept)]
        assert engine.wait_until(lambda engine: engine.running == 2)
        path = f"/tenants/{tenant['id']}/keys"
        admin(pair.one, "DELETE", f"{path}/{doomed['record']['id']}").raise_for_status()
        assert '"code":"invalid_api_key"' in streams[0].result(WITHIN_S)
        assert not streams[1].done(), "the control"
        assert engine.running == 1
        admin(pair.one, "DELETE", f"{path}/{kept['record']['id']}").raise_for_status()
        assert '"code":"invalid_api_key"' in streams[1].result(WITHIN_S)
    engine.pace = at_once


def test_what_one_publishes_the_other_has_and_has_no_more(pair: Pair) -> None:
    text = "Be brief and kind to all who ask you something, whoever they are."
    sent = {"name": "rules", "text": text}
    made = admin(pair.one, "POST", "/prefixes", json=sent).json()
    full = made["tokens"] // 16 * 16

    def cached(gateway: Served, salt: str) -> int:
        body = {"model": MODEL, "prompt": text + " Well?", "max_tokens": 1, "cache_salt": salt}
        headers = {"authorization": f"Bearer {gateway.key}"}
        url = f"{gateway.url}/v1/completions"
        answer = httpx.post(url, json=body, headers=headers, timeout=60).json()
        found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    salts = (f"salt-{number}" for number in count())
    # the first gateway's engine got the flush before the answer
    assert cached(pair.one, next(salts)) == full
    wait_for(lambda: cached(pair.two, next(salts)) == full, 6.0)
    assert admin(pair.two, "GET", f"/prefixes/{made['id']}").json()["state"] == "warm"
    assert admin(pair.two, "DELETE", f"/prefixes/{made['id']}").status_code == 200
    wait_for(lambda: cached(pair.one, next(salts)) == 0, 6.0)
    assert admin(pair.one, "GET", "/prefixes").json() == {"prefixes": []}


def test_usage_of_both_adds_up(pair: Pair) -> None:
    tenant = admin(pair.one, "POST", "/tenants", json={"name": "metered"}).json()
    key = admin(pair.one, "POST", f"/tenants/{tenant['id']}/keys", json={}).json()["key"]
    answers = [chat(gateway, key).json() for gateway in (pair.one, pair.two, pair.two)]
    prompts = sum(answer["usage"]["prompt_tokens"] for answer in answers)
    completions = sum(answer["usage"]["completion_tokens"] for answer in answers)

    def own() -> list[dict[str, int]]:
        headers = {"authorization": f"Bearer {key}"}
        found = httpx.get(f"{pair.one.url}/v1/usage", headers=headers).json()["usage"]
        assert isinstance(found, list)
        return found

    wait_for(lambda: bool(own()) and own()[0]["requests"] == 3, WITHIN_S)
    [row] = own()
    assert row["computed_tokens"] + row["cached_tokens"] == prompts
    assert row["generated_tokens"] == completions
    found = admin(pair.two, "GET", "/usage", params={"tenant": tenant["id"], "format": "csv"})
    assert found.text.count("\r\n") == 2
    assert tenant["id"] in found.text


def test_what_a_request_of_one_wrote_a_request_of_the_other_reads(pair: Pair) -> None:
    tenant = admin(pair.one, "POST", "/tenants", json={"name": "split"}).json()["id"]
    path = f"/tenants/{tenant}/keys"
    writer, reader = [admin(pair.one, "POST", path, json={}).json() for _ in range(2)]
    pair.engines[1].share_cache_of(pair.engines[0])

    def unread(key: dict[str, Any]) -> tuple[int, int]:
        rows = admin(pair.two, "GET", "/usage", params={"key": key["record"]["id"]}).json()["usage"]
        names = "cache_written_tokens", "cache_unread_tokens"
        written, unread = (sum(row[name] for row in rows) for name in names)
        return written, unread

    tokens = chat(pair.one, writer["key"]).json()["usage"]["prompt_tokens"] // 16 * 16
    assert tokens > 0
    wait_for(lambda: unread(writer) == (tokens, tokens), WITHIN_S)
    chat(pair.two, reader["key"])
    wait_for(lambda: unread(writer) == (tokens, 0), WITHIN_S)
    assert unread(reader) == (0, 0)


def test_without_redis_known_keys_work_and_others_get_503(pair: Pair) -> None:
    assert chat(pair.one, pair.one.key).status_code == 200
    pair.server.freeze()
    try:
        for _ in range(8):
            assert chat(pair.one, pair.one.key).status_code == 200
            stranger = chat(pair.one, "sk-" + "z" * 43)
            assert stranger.status_code == 503
            assert int(stranger.headers["retry-after"]) >= 1
            refused = admin(pair.one, "GET", "/tenants")
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                503,
                "state_unavailable",
            )
    finally:
        pair.server.thaw()
    wait_for(lambda: chat(pair.one, "sk-" + "y" * 43).status_code == 401, WITHIN_S)
