"""When a key is revoked, its streams end with an error in the official client.

With two workers, the process that makes the operator's change is often not the process that
streams. As positive controls, answers under other keys reach their full length.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from tests.doubles.waiting import wait_for
from tests.seams.support.server import START_S, Server, running_server

WITHIN_S = 30.0  # seconds; the documented limit is five, but this machine may be busy
# Lengths of answers in tokens. The revocation ends those of ENDLESS tokens, but not of LENGTH.
ENDLESS, LENGTH = 4000, 1500


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("revoked") / "data"
    settings = {"RATOON_WORKERS": "2", "RATOON_CACHE_TOKENS": "65536"}
    with running_server(data_dir, settings) as running:
        yield running


class Asker(threading.Thread):
    """A client that asks once through the official client, and keeps the result."""

    def __init__(self, server: Server, key: str, max_tokens: int, *, stream: bool = True) -> None:
        super().__init__(daemon=True)
        self._client = server.openai(key)
        self._max_tokens, self._stream = max_tokens, stream
        self.pieces = self.tokens = 0
        self.error: openai.APIError | None = None
        self.ended_at = 0.0
        self.start()

    def run(self) -> None:
        try:
            self._ask()
        except openai.APIError as error:
            self.error = error
        finally:
            self.ended_at = time.monotonic()

    def _ask(self) -> None:
        asked: dict[str, Any] = {"model": "handbook", "prompt": "The harbour"}
        asked |= {"max_tokens": self._max_tokens, "extra_body": {"ignore_eos": True}}
        with self._client as client:
            if not self._stream:
                client.completions.create(**asked)
                return
            asked["stream_options"] = {"include_usage": True}
            for piece in client.completions.create(stream=True, **asked):
                self.pieces += 1
                if piece.usage is not None:
                    self.tokens = piece.usage.completion_tokens


@dataclass(frozen=True)
class Operator:
    """An operator that creates and removes tenants and keys."""

    client: httpx.Client

    def call(self, method: str, path: str, body: object = None) -> Any:
        answer = self.client.request(method, f"/admin/tenants{path}", json=body)
        answer.raise_for_status()
        return answer.json()

    def tenant(self, name: str) -> str:
        return str(self.call("POST", "", {"name": name})["id"])

    def key(self, tenant_id: str, **settings: object) -> dict[str, Any]:
        issued: dict[str, Any] = self.call("POST", f"/{tenant_id}/keys", settings)
        return issued


ENDS: dict[str, Callable[[Operator, str, str], object]] = {
    "revoked": lambda operator, tenant, key: operator.call("DELETE", f"/{tenant}/keys/{key}"),
    "rotated": lambda operator, tenant, key: operator.call(
        "POST", f"/{tenant}/keys/{key}/rotate", {"overlap_s": 1.0}
    ),
    "disabled": lambda operator, tenant, _: operator.call(
        "PATCH", f"/{tenant}", {"disabled": True}
    ),
    "deleted": lambda operator, tenant, _: operator.call("DELETE", f"/{tenant}"),
}


def test_no_stream_outlives_its_key_and_no_other_is_cut(server: Server) -> None:
    with server.client(server.admin_key) as client:
        operator = Operator(client)
        tenants = {end: operator.tenant(end) for end in ENDS}
        keys = {end: operator.key(tenant) for end, tenant in tenants.items()}
        sibling = operator.key(tenants["revoked"])
        streams = {
            end: [Asker(server, key["key"], ENDLESS) for _ in range(2)] for end, key in keys.items()
        }
        whole = {end: Asker(server, key["key"], ENDLESS, stream=False) for end, key in keys.items()}
        controls = [Asker(server, key, LENGTH) for key in (sibling["key"], server.demo_key)]
        every = [*(one for some in streams.values() for one in some), *controls]
        wait_for(lambda: all(one.pieces > 1 or one.error for one in every), START_S)
        assert not any(one.error for one in every)
        running = len(every) + len(whole)
        wait_for(lambda: server.stats()["queue"]["running"] == running, START_S)
        for end, key in keys.items():
            ENDS[end](operator, tenants[end], key["record"]["id"])
        for end in ENDS:
            for one in [*streams[end], whole[end]]:
                one.join(WITHIN_S)
                assert not one.is_alive(), end
                assert one.error is not None, end
                code = "tenant_disabled" if end == "disabled" else "invalid_api_key"
                assert one.error.code == code
            assert whole[end].error is not None
            refused = (
                openai.PermissionDeniedError if end == "disabled" else (openai.AuthenticationError)
            )
            assert isinstance(whole[end].error, refused)
        wait_for(lambda: server.stats()["queue"]["running"] <= len(controls), WITHIN_S)
        last_cut = max(one.ended_at for some in streams.values() for one in some)
        for control in controls:
            control.join(START_S)
            assert control.error is None
            assert control.tokens == LENGTH, "whole: what waits to be sent may be one piece"
            assert control.ended_at > last_cut, "it ran while the others were cut"
    wait_for(lambda: server.pool()["leased"] == 0, WITHIN_S)
