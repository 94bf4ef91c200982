"""Requests over HTTP are refused, charged and answered with headers as their tenant's limits say.

The gateway is real, with a fake engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.errors import EngineDied
from gateway.config import GatewayConfig
from gateway.tenant_limits import Prices
from tests.doubles.engine.fake_engine import (
    FakeEngine,
    at_once,
    failing_at,
    hanging_at,
    parrot,
    saying,
)
from tests.doubles.gateway.redis_server import redis_server
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.gateway.conftest import BOUNDS

X100 = "x" * 99  # a hundred tokens, including BOS
PRICES = Prices(computed=1.0, cached=0.25, generated=4.0)


class Shop:
    """The gateway, its operator, and a new tenant."""

    def __init__(self, served: Served, engine: FakeEngine) -> None:
        self.engine = engine
        self.served = served
        self._admin = httpx.Client(
            base_url=served.url, headers={"x-api-key": served.admin_key}, timeout=60
        )
        self.http = httpx.Client(base_url=served.url, timeout=60)
        self._made = 0

    def tenant(self, limits: dict[str, Any], **fields: Any) -> Tenant:
        self._made += 1
        body = {"name": f"tenant {self._made}", "limits": limits, **fields}
        made = self._admin.post("/admin/tenants", json=body)
        assert made.status_code == 201, made.text
        return Tenant(self, made.json()["id"])

    def key(self, tenant_id: str) -> str:
        answer = self._admin.post(f"/admin/tenants/{tenant_id}/keys", json={})
        return str(answer.json()["key"])

    def patch(self, tenant_id: str, change: dict[str, Any]) -> httpx.Response:
        return self._admin.patch(f"/admin/tenants/{tenant_id}", json=change)

    def close(self) -> None:
        self._admin.close()
        self.http.close()


class Tenant:
    def __init__(self, shop: Shop, tenant_id: str) -> None:
        self.shop = shop
        self.id = tenant_id
        self.url = shop.served.url
        self.key = shop.key(tenant_id)

    def ask(self, *, prompt: Any = X100, max_tokens: int = 10, **more: Any) -> httpx.Response:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, **more}
        headers = {"authorization": f"Bearer {self.key}"}
        return self.shop.http.post("/v1/completions", json=body, headers=headers)

    def leave(self, *, after_first_token: bool = True, **more: Any) -> None:
        """Send a streaming request, and disconnect."""
        body = {"model": MODEL, "prompt": X100, "max_tokens": 50, "stream": True, **more}
        headers = {"authorization": f"Bearer {self.key}"}
        timeout = httpx.Timeout(20 if after_first_token else 0.2)
        try:
            with httpx.stream(
                "POST", f"{self.url}/v1/completions", json=body, headers=headers, timeout=timeout
            ) as answer:
                next(answer.iter_lines())
        except httpx.ReadTimeout:
            assert not after_first_token
        assert self.shop.engine.wait_until(lambda engine: engine.running == 0)
        assert self.shop.served.wait_idle()


@pytest.fixture(scope="module")
def config(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> GatewayConfig:
    return config_of(tiny_model, tmp_path_factory.mktemp("limited"), bounds=BOUNDS, prices=PRICES)


@pytest.fixture(scope="module")
def shop_engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def open_shop(config: GatewayConfig, shop_engine: FakeEngine) -> Iterator[Shop]:
    with serving(config, shop_engine) as served:
        shop = Shop(served, shop_engine)
        yield shop
        shop.close()


@pytest.fixture
def shop(open_shop: Shop) -> Iterator[Shop]:
    open_shop.engine.reset()
    open_shop.engine.script, open_shop.engine.pace = parrot, at_once
    yield open_shop
    assert open_shop.engine.wait_until(lambda engine: engine.running == 0)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 429, answer.text
    return dict(answer.json()["error"])


def remaining(answer: httpx.Response, what: str = "tokens") -> int:
    return int(answer.headers[f"x-ratelimit-remaining-{what}"])


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_tells_where_the_tenant_stands(shop: Shop, stream: bool) -> None:
    tenant = shop.tenant({"requests_per_minute": 10, "tokens_per_minute": 6000})
    answer = tenant.ask(stream=stream)
    assert answer.status_code == 200
    told = {name: value for name, value in answer.headers.items() if "ratelimit" in name}
    assert told == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "6s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "5890",
        "x-ratelimit-reset-tokens": "2s",
    }


def test_a_tenant_without_limits_gets_no_limit_headers(shop: Shop) -> None:
    answer = shop.tenant({}).ask()
    assert answer.status_code == 200
    assert not [name for name in answer.headers if "ratelimit" in name]


def test_too_many_requests_get_a_retry_after(shop: Shop) -> None:
    tenant = shop.tenant({"requests_per_minute": 2})
    assert [tenant.ask().status_code for _ in range(2)] == [200, 200]
    refused = tenant.ask()
    error = error_of(refused)
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert 25 <= int(refused.headers["retry-after"]) <= 30
    assert remaining(refused, "requests") == 0
    assert shop.tenant({"requests_per_minute": 2}).ask().status_code == 200


def test_tokens_are_counted_as_computed(shop: Shop) -> None:
    shop.engine.script = saying("four")
    tenant = shop.tenant({"tokens_per_minute": 400})
    first = tenant.ask(max_tokens=300)  # reserves 400 tokens, computes 105
    assert (first.status_code, remaining(first)) == (200, 0)
    second = tenant.ask(max_tokens=50)  # all of the prompt except its last block is cached
    assert second.status_code == 200
    assert 400 - 105 - 150 <= remaining(second) <= 400 - 105 - 150 + 5
    third = tenant.ask(max_tokens=100)
    assert 400 - 105 - 9 - 200 <= remaining(third) <= 400 - 105 - 9 - 200 + 10
    refused = tenant.ask(max_tokens=299)
    error = error_of(refused)
    assert (error["type"], error["code"]) == ("tokens", "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) >= 1
    wait_ms = int(refused.headers["retry-after-ms"])
    assert -(-wait_ms // 1000) == int(refused.headers["retry-after"])


def test_a_request_larger_than_the_bucket_gets_no_retry_after(shop: Shop) -> None:
    refused = shop.tenant({"tokens_per_minute": 100}).ask(max_tokens=1)
    assert error_of(refused)["type"] == "tokens"
    assert "retry-after" not in refused.headers


def test_each_choice_reserves_its_prompt_and_is_charged_what_it_computed(shop: Shop) -> None:
    shop.engine.script = saying("four")
    tenant = shop.tenant({"tokens_per_minute": 10_000})
    three = tenant.ask(n=3, max_tokens=20)
    assert remaining(three) == 10_000 - 3 * (100 + 20)
    two = tenant.ask(prompt=["y" * 59, "z" * 39], n=2, max_tokens=20)
    computed = 100 + 2 * 4 + 3 * 5  # each choice's stop token counts
    assert 0 <= remaining(two) - (10_000 - computed - 2 * 100 - 4 * 20) <= 60


def test_a_spent_budget_gets_no_retry_after(shop: Shop) -> None:
    tenant = shop.tenant({"budget": {"units": 0.0003}})
    assert tenant.ask(max_tokens=25).status_code == 200  # 100 + 4 * 25 = 200 of 300 micro-units
    refused = tenant.ask(prompt="other" * 19, max_tokens=2)
    error = error_of(refused)
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert "retry-after" not in refused.headers
    assert error["message"].startswith("limited to 0.0003 units a month;")
    assert "wait for the next month (UTC), or have the budget raised" in error["message"]
    more = tenant.ask(prompt="more" * 25, max_tokens=70)  # costs more than a month's budget
    assert "month" not in error_of(more)["message"].removeprefix("limited to 0.0003 units a month")
    shop.patch(tenant.id, {"limits": {"budget": {"units": 0.0002, "period": "total"}}})
    text = error_of(tenant.ask(prompt="third" * 60, max_tokens=2))["message"]
    assert text.startswith("limited to 0.0002 units in all;")
    assert "month" not in text, "a budget in all has no next month"
    shop.patch(tenant.id, {"limits": {"budget": {"units": 1.0, "period": "total"}}})
    assert tenant.ask().status_code == 200


def test_cached_tokens_have_their_own_price(shop: Shop) -> None:
    shop.engine.script = saying("")
    tenant = shop.tenant({"budget": {"units": 0.00025}})
    # The budget is 250 micro-units. The first request costs 100, and 4 for its stop token. Of the
    # second request's 100 tokens, 96 are cached (24) and 4 are not: 32 with its stop token. The
    # third request finds 114 left and needs 104.
    assert [tenant.ask(max_tokens=1).status_code for _ in range(4)] == [200, 200, 200, 429]
    assert tenant.ask(prompt="x" * 69, max_tokens=1).status_code == 200


def test_200_in_parallel_do_not_overshoot_a_budget_for_10(shop: Shop) -> None:
    cost = 100 + 4 * 1
    tenant = shop.tenant({"budget": {"units": 10 * cost / 1e6, "period": "total"}})

    def one(number: int) -> int:
        return tenant.ask(prompt=f"{number:03}".ljust(99, "."), max_tokens=1).status_code

    with ThreadPoolExecutor(32) as pool:
        statuses = list(pool.map(one, range(200)))
    assert statuses.count(200) == 10
    assert statuses.count(429) == 190


def test_only_so_many_run_at_once_and_a_gone_client_gives_its_place_back(shop: Shop) -> None:
    tenant = shop.tenant({"max_concurrent": 1})
    shop.engine.script, shop.engine.pace = saying("a" * 900), hanging_at(1)
    headers = {"authorization": f"Bearer {tenant.key}"}
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 5, "stream": True}
    with httpx.stream(
        "POST", f"{tenant.url}/v1/completions", json=body, headers=headers, timeout=60
    ) as answer:
        lines = answer.iter_lines()  # the variable keeps the iterator alive, and so the stream open
        next(lines)
        refused = tenant.ask()
        assert error_of(refused)["code"] == "rate_limit_exceeded"
        assert refused.headers["retry-after"] == "1"
    assert shop.engine.wait_until(lambda engine: engine.running == 0)
    assert shop.served.wait_idle()
    shop.engine.pace = at_once
    assert tenant.ask().status_code == 200


def test_what_an_aborted_stream_computed_counts_and_the_rest_is_given_back(shop: Shop) -> None:
    tenant = shop.tenant({"tokens_per_minute": 1000})
    shop.engine.script, shop.engine.pace = saying("a" * 900), hanging_at(3)
    tenant.leave(max_tokens=800)
    shop.engine.pace = at_once
    after = tenant.ask(prompt="y" * 49, max_tokens=10)
    assert 0 <= remaining(after) - (1000 - 103 - 60) <= 60


def test_a_prompt_abandoned_before_its_first_token_counts(shop: Shop) -> None:
    tenant = shop.tenant({"budget": {"units": 0.0005}})
    shop.engine.script, shop.engine.pace = saying("a" * 900), hanging_at(0)
    # reserves 300 tokens, and has used at most 100
    tenant.leave(after_first_token=False, max_tokens=50)
    shop.engine.pace = at_once
    # would use 420 of 400 tokens
    assert tenant.ask(prompt="y" * 99, max_tokens=80).status_code == 429
    assert tenant.ask(prompt="y" * 99, max_tokens=75).status_code == 200


def test_what_the_engine_could_not_do_costs_nothing(shop: Shop) -> None:
    tenant = shop.tenant({"tokens_per_minute": 1000, "budget": {"units": 0.0005}})
    shop.engine.pace = failing_at(0, EngineDied("it died", retry_after_s=1.0))
    for _ in range(5):
        assert tenant.ask(max_tokens=100).status_code == 503
    shop.engine.pace = at_once
    assert remaining(tenant.ask(max_tokens=100)) == 800


def test_a_request_that_is_refused_counts_as_one_and_costs_no_tokens(shop: Shop) -> None:
    """Count a refused request, but charge no tokens.

    The request is counted before its body is read. Every other reservation is returned.
    """
    tenant = shop.tenant({"requests_per_minute": 3, "tokens_per_minute": 1000, "max_concurrent": 1})
    for _ in range(2):
        assert tenant.ask(max_tokens=100_000).status_code == 400
    answer = tenant.ask(max_tokens=100)
    assert (answer.status_code, remaining(answer)) == (200, 800)
    assert tenant.ask().status_code == 429


def test_a_batch_tenant_or_request_is_batch_and_none_can_raise_itself(shop: Shop) -> None:
    interactive, batch = shop.tenant({}), shop.tenant({}, priority="batch")
    for tenant, tier in (
        (interactive, None),
        (interactive, "flex"),
        (batch, None),
        (batch, "priority"),
    ):
        assert tenant.ask(service_tier=tier).status_code == 200
    priorities = [request.priority for request in shop.engine.requests]
    assert priorities == ["interactive", "batch", "batch", "batch"]


def test_a_tenants_target_between_tokens_goes_to_the_engine(shop: Shop) -> None:
    promised, usual = shop.tenant({}, target_itl_ms=25.0), shop.tenant({})
    for tenant in (promised, usual):
        assert tenant.ask().status_code == 200
    assert [request.target_itl_s for request in shop.engine.requests] == [0.025, 0.0]


@pytest.mark.parametrize(
    "limits",
    [
        {"requests_per_minute": 0},
        {"tokens_per_minute": 1.5},
        {"burst_s": 61},
        {"budget": {"units": -1}},
        {"budget": {"units": 1, "period": "week"}},
        {"rpm": 1},
    ],
    ids=str,
)
def test_limits_that_make_no_sense_are_refused(shop: Shop, limits: dict[str, Any]) -> None:
    tenant = shop.tenant({"requests_per_minute": 5})
    answer = shop.patch(tenant.id, {"limits": limits})
    assert answer.status_code == 400
    assert remaining(tenant.ask(), "requests") == 4


def test_over_redis_all_of_it_is_the_same_until_redis_goes(
    config: GatewayConfig, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    engine = FakeEngine()
    with redis_server(tmp_path) as server:
        data_dir = str(tmp_path_factory.mktemp("over-redis"))
        with serving(_over(config, server.url, data_dir), engine) as served:
            shop = Shop(served, engine)
            rates = shop.tenant({"requests_per_minute": 3})
            budget = shop.tenant({"budget": {"units": 1.0}})
            assert rates.ask().status_code == 200
            assert budget.ask().status_code == 200
            server.kill()
            after = [rates.ask() for _ in range(4)]
            assert [answer.status_code for answer in after] == [200, 200, 429, 429]
            closed = budget.ask()
            assert closed.status_code == 503
            assert closed.json()["error"]["code"] == "limits_unavailable"
            assert closed.headers["retry-after"] == "1"
            shop.close()


def _over(config: GatewayConfig, url: str, data_dir: str) -> GatewayConfig:
    fields = {name: getattr(config, name) for name in config.__struct_fields__}
    return GatewayConfig(**fields | {"redis_url": url, "data_dir": data_dir, "workers": 1})
