"""A tenant's limits apply to the routes that generate no tokens, whose usage is metered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.seams.support.small_qwen import write_tokenizer

TEXT = "word " * 100
BODIES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": TEXT},
    "/v1/rerank": {"query": "?", "documents": [TEXT]},
    "/v1/decisions": {
        "input": TEXT,
        "questions": [{"type": "predicate", "instructions": "It has words."}],
    },
}


@pytest.fixture(scope="module")
def limiting(
    tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine
) -> Iterator[Served]:
    model_dir = tmp_path_factory.mktemp("models") / "qwen"
    write_tokenizer(model_dir, appends=False)
    with serving(config_of(model_dir, tmp_path_factory.mktemp("data")), module_engine) as gateway:
        yield gateway


def ask(served: Served, path: str, limits: dict[str, Any]) -> httpx.Response:
    """Send a request as a new tenant with these limits."""
    with httpx.Client(base_url=served.url, timeout=60) as http:
        admin = {"x-api-key": served.admin_key}
        body = {"name": f"{path} {limits}", "limits": limits}
        made = http.post("/admin/tenants", json=body, headers=admin).raise_for_status().json()
        issued = http.post(f"/admin/tenants/{made['id']}/keys", json={}, headers=admin).json()
        key = {"authorization": f"Bearer {issued['key']}"}
        return http.post(path, json={"model": MODEL, **BODIES[path]}, headers=key)


@pytest.mark.parametrize("path", BODIES)
def test_rates_and_budgets_hold(limiting: Served, engine: FakeEngine, path: str) -> None:
    rate = ask(limiting, path, {"tokens_per_minute": 100})
    budget = ask(limiting, path, {"budget": {"units": 0.0000001}})
    assert [rate.status_code, budget.status_code] == [429, 429]
    assert rate.json()["error"]["type"] == "tokens"
    assert budget.json()["error"]["code"] == "insufficient_quota"
    assert not engine.requests
    taken = ask(limiting, path, {"tokens_per_minute": 10_000})
    assert taken.status_code == 200, "the control"
    assert int(taken.headers["x-ratelimit-remaining-tokens"]) < 9_600


@pytest.mark.parametrize("path", BODIES)
def test_a_route_has_its_metrics(limiting: Served, engine: FakeEngine, path: str) -> None:
    assert ask(limiting, path, {}).status_code == 200
    key = {"authorization": f"Bearer {limiting.metrics_key}"}
    told = httpx.get(f"{limiting.url}/metrics", headers=key).text
    assert f'route="{path}"' in told
    assert engine.requests
