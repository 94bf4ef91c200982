"""A tenant with many keys has the same limits, budget, streams, turns and cache as with one key.

Each test uses one key, many keys, and, as its positive control, the same number of tenants.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config import GatewayConfig
from tests.doubles.engine.fake_engine import FakeEngine, at_once, hanging_at, parrot, saying
from tests.doubles.gateway.served import MODEL, Served, serving
from tests.gateway.conftest import BOUNDS

KEYS = 5
QUOTA = {"floor": 0.1, "ceiling": 0.5}


class Customer:
    """A client that uses several keys in turn, which belong to one tenant or to several."""

    def __init__(self, http: httpx.Client, keys: list[str]) -> None:
        self.http = http
        self._turns = cycle(keys)

    def ask(self, **more: Any) -> httpx.Response:
        """Ask with the next key."""
        return self.http.post("/v1/completions", json=body(**more), headers=self.headers())

    def headers(self) -> dict[str, str]:
        """Return the headers with the next key."""
        return {"authorization": f"Bearer {next(self._turns)}"}


def body(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "x" * 99, "max_tokens": 1, **more}


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def served(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, engine: FakeEngine
) -> Iterator[Served]:
    config = GatewayConfig(
        model_dir=str(tiny_model),
        model_name=MODEL,
        data_dir=str(tmp_path_factory.mktemp("keys")),
        engines=(),
        port=0,
        bounds=BOUNDS,
        grace_s=1.0,
    )
    with serving(config, engine) as running:
        yield running


@pytest.fixture
def hire(served: Served, engine: FakeEngine) -> Iterator[Callable[..., Customer]]:
    engine.reset()
    engine.script, engine.pace = parrot, at_once
    headers = {"x-api-key": served.admin_key}
    with (
        httpx.Client(base_url=served.url, headers=headers, timeout=60) as admin,
        httpx.Client(base_url=served.url, timeout=60) as http,
    ):

        def new(limits: dict[str, Any], *, tenants: int, keys: int) -> Customer:
            """Make a client with `keys` keys for each of `tenants` tenants."""
            issued = []
            for _ in range(tenants):
                sent = {"name": uuid.uuid4().hex, "limits": limits, "cache": QUOTA}
                tenant = admin.post("/admin/tenants", json=sent).raise_for_status().json()["id"]
                for _ in range(keys):
                    key = admin.post(f"/admin/tenants/{tenant}/keys", json={}).raise_for_status()
                    issued.append(key.json()["key"])
            return Customer(http, issued)

        yield new
    assert engine.wait_until(lambda engine: engine.running == 0)


Hire = Callable[..., Customer]
WITH_ONE_TENANT = pytest.mark.parametrize("keys", [1, KEYS])


def admitted(customer: Customer, asks: int, **more: Any) -> int:
    """Send `asks` requests; return how many were admitted."""
    statuses = [customer.ask(**more).status_code for _ in range(asks)]
    assert set(statuses) <= {200, 429}
    return statuses.count(200)


@WITH_ONE_TENANT
@pytest.mark.parametrize(
    ("limits", "let_in"),
    [
        ({"requests_per_minute": 4}, 4),
        # 101 tokens each, most of them cached after the first request
        ({"tokens_per_minute": 450}, 4),
        ({"budget": {"units": 0.00045, "period": "total"}}, 4),
    ],
)
def test_limits_are_the_tenants(hire: Hire, keys: int, limits: dict[str, Any], let_in: int) -> None:
    fresh = (f"{number:03}".ljust(99, ".") for number in range(1000))
    one_tenant, tenants = hire(limits, tenants=1, keys=keys), hire(limits, tenants=KEYS, keys=1)

    def count(customer: Customer) -> int:
        prompts = islice(fresh, 2 * KEYS)
        return sum(admitted(customer, 1, prompt=prompt) for prompt in prompts)

    assert count(one_tenant) == let_in
    assert count(tenants) == 2 * KEYS


def test_200_in_parallel_by_many_keys_do_not_overshoot_a_budget_for_10(hire: Hire) -> None:
    customer = hire({"budget": {"units": 10 * 104 / 1e6, "period": "total"}}, tenants=1, keys=8)

    def one(number: int) -> int:
        return customer.ask(prompt=f"{number:03}".ljust(99, "-")).status_code

    with ThreadPoolExecutor(32) as pool:
        statuses = list(pool.map(one, range(200)))
    assert sorted(set(statuses)) == [200, 429]
    assert statuses.count(200) == 10


@WITH_ONE_TENANT
@pytest.mark.parametrize(("limits", "prompts"), [({"max_concurrent": 2}, 1), ({}, 2)])
def test_what_runs_at_once_is_the_tenants(
    hire: Hire, engine: FakeEngine, served: Served, keys: int, limits: dict[str, Any], prompts: int
) -> None:
    """Run two streams at once, by the tenant's limit or by the gateway's limit of 64 choices."""
    engine.script, engine.pace = saying("a" * 900), hanging_at(1)
    one_tenant, tenants = hire(limits, tenants=1, keys=keys), hire(limits, tenants=3, keys=1)
    lines: list[Iterator[str]] = []  # this list keeps the streams open
    with ExitStack() as open_streams:

        def open_stream(customer: Customer) -> int:
            sent = body(prompt=["x" * 99] * prompts, n=16, stream=True, max_tokens=50)
            asked = customer.http.stream(
                "POST", "/v1/completions", json=sent, headers=customer.headers()
            )
            answer = open_streams.enter_context(asked)
            if answer.status_code == 200:
                lines.append(answer.iter_lines())
                next(lines[-1])
            return answer.status_code

        assert [open_stream(one_tenant) for _ in range(3)] == [200, 200, 429]
        assert [open_stream(tenants) for _ in range(3)] == [200, 200, 200]
    assert served.wait_idle()


def test_the_engine_hears_of_one_flow_with_one_weight_and_one_quota(
    hire: Hire, engine: FakeEngine
) -> None:
    def told(customer: Customer) -> set[tuple[object, ...]]:
        engine.requests.clear()
        assert admitted(customer, KEYS) == KEYS
        return {(r.flow, r.weight, r.cache_quota, r.namespaces[0]) for r in engine.requests}

    assert len(told(hire({}, tenants=1, keys=KEYS))) == 1
    assert len(told(hire({}, tenants=KEYS, keys=1))) == KEYS


def test_what_one_key_has_cached_the_others_have(hire: Hire) -> None:
    def cached(customer: Customer) -> list[int]:
        prompt = f"{id(customer)}".ljust(99, "+")
        answers = [customer.ask(prompt=prompt).json()["usage"] for _ in range(KEYS)]
        return [usage["prompt_tokens_details"]["cached_tokens"] for usage in answers]

    assert cached(hire({}, tenants=1, keys=KEYS)) == [0, *[96] * (KEYS - 1)]
    assert cached(hire({}, tenants=KEYS, keys=1)) == [0] * KEYS
