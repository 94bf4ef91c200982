"""Chats without `max_tokens` get answers as long as their tenant's small limits have room for.

The gateway is real, with a fake engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.limits.answer_lengths import START
from gateway.tenant_limits import Prices
from tests.doubles.engine.fake_engine import FakeEngine, at_once, parrot, saying
from tests.doubles.gateway.served import MODEL, config_of, serving
from tests.gateway.conftest import BOUNDS
from tests.gateway.limits.test_limits_http import Shop, Tenant, error_of, remaining

PRICES = Prices(computed=1.0, cached=0.25, generated=4.0)
LONG = "w" * 4000


@pytest.fixture(scope="module")
def open_shop(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    config = config_of(tiny_model, tmp_path_factory.mktemp("open"), bounds=BOUNDS, prices=PRICES)
    engine = FakeEngine()
    with serving(config, engine) as served:
        shop = Shop(served, engine)
        yield shop
        shop.close()


@pytest.fixture
def shop(open_shop: Shop) -> Iterator[Shop]:
    open_shop.engine.reset()
    open_shop.engine.script, open_shop.engine.pace = parrot, at_once
    yield open_shop
    assert open_shop.engine.wait_until(lambda engine: engine.running == 0)


def chat(tenant: Tenant, **more: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], **more}
    headers = {"authorization": f"Bearer {tenant.key}"}
    return tenant.shop.http.post("/v1/chat/completions", json=body, headers=headers)


def test_a_small_chat_passes_a_small_limit_until_that_is_used_up(shop: Shop) -> None:
    shop.engine.script = saying("a short answer")
    tenant = shop.tenant({"tokens_per_minute": 3000})
    answers = [chat(tenant) for _ in range(400)]
    codes = [answer.status_code for answer in answers]
    served = codes.index(429)
    assert codes[:served] == [200] * served
    used = sum(answer.json()["usage"]["total_tokens"] for answer in answers[:served])
    assert used > 3000 - START - 100
    assert int(answers[served].headers["retry-after"]) > 0
    assert error_of(answers[served])["type"] == "tokens"


def test_what_such_a_chat_reserves_is_what_it_is_likely_to_need(shop: Shop) -> None:
    tenant = shop.tenant({"tokens_per_minute": 3000})
    shop.engine.script = saying(LONG)
    first = chat(tenant, stream=True)
    assert remaining(first) == 3000 - START - prompt_tokens(shop)


def prompt_tokens(shop: Shop) -> int:
    return len(shop.engine.requests[-1].token_ids) // 4


def test_the_answer_is_as_long_as_the_limit_has_room_for(shop: Shop) -> None:
    shop.engine.script = saying(LONG)
    tenant = shop.tenant({"tokens_per_minute": 3000})
    answer = chat(tenant).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 3000


def test_what_was_used_beyond_the_reservation_counts(shop: Shop) -> None:
    shop.engine.script = saying("w" * 2800)
    tenant = shop.tenant({"tokens_per_minute": 3000})
    assert chat(tenant).status_code == 200  # reserves a tenth of 3,000 tokens
    refused = chat(tenant)
    assert error_of(refused)["type"] == "tokens"
    assert int(refused.headers["retry-after"]) > 0


def test_tenants_with_a_set_length_reserve_it_and_are_told_what_would_pass(shop: Shop) -> None:
    tenant = shop.tenant({"tokens_per_minute": 3000})
    assert chat(shop.tenant({})).status_code == 200
    most = 3000 - prompt_tokens(shop)
    refused = chat(tenant, max_tokens=3500)
    assert "retry-after" not in refused.headers
    assert refused.headers["x-should-retry"] == "false"
    assert f"set `max_tokens` to {most} or less" in error_of(refused)["message"]
    assert error_of(chat(tenant, max_tokens=most + 1))
    assert chat(tenant, max_tokens=most).status_code == 200


def test_a_small_budget_serves_a_shorter_answer_and_is_never_exceeded(shop: Shop) -> None:
    shop.engine.script = saying(LONG)
    tenant = shop.tenant({"budget": {"units": 0.001, "period": "total"}})
    spent, answers = 0.0, 0
    while (answer := chat(tenant)).status_code == 200:
        usage = answer.json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        computed = usage["prompt_tokens"] - cached
        spent += computed + 0.25 * cached + 4 * usage["completion_tokens"]
        answers += 1
        assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert answers > 0
    assert 500 < spent <= 1000
    assert error_of(answer)["code"] == "insufficient_quota"
    assert answer.headers["x-should-retry"] == "false"


def test_a_large_budget_cuts_nothing(shop: Shop) -> None:
    shop.engine.script = saying("w" * 500)
    tenant = shop.tenant({"budget": {"units": 1, "period": "total"}})
    assert chat(tenant).json()["choices"][0]["finish_reason"] == "stop"
