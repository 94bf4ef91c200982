"""The operator may set `cache.load` in a request. Tenants may set it if the operator allows it."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from gateway.config import Bounds
from gateway.dialects.openai.requests.sampling import checked_loads
from gateway.dialects.openai.requests.schema import CompletionRequest
from gateway.errors import BadRequest
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import MODEL, Served

ALLOWED = Bounds(allow_cache_load=True)


def request(**extra: object) -> CompletionRequest:
    body = msgspec.json.encode({"model": "m", "prompt": "p", **extra})
    return msgspec.json.decode(body, type=CompletionRequest)


@pytest.mark.parametrize("load", ["auto", "always", "never"])
def test_what_is_asked_for_goes_through_where_it_is_allowed(load: str) -> None:
    wire = request(cache={"load": load})
    assert checked_loads(wire, ALLOWED) == load
    with pytest.raises(BadRequest, match="not allowed"):
        checked_loads(wire, Bounds())


@pytest.mark.parametrize("extra", [{}, {"cache": None}, {"cache": {}}, {"cache": {"load": None}}])
def test_the_default_is_auto(extra: dict[str, object]) -> None:
    assert checked_loads(request(**extra), Bounds()) == "auto"


@pytest.mark.parametrize("cache", [{"load": "sometimes"}, {"laod": "never"}, "never"])
def test_any_other_value_is_refused(cache: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        request(cache=cache)


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_the_operator_may_choose_where_tenants_may_not(
    served: Served, engine: FakeEngine, path: str, prompt: dict[str, Any]
) -> None:
    body = {"model": MODEL, "max_tokens": 2, "cache": {"load": "never"}, **prompt}
    as_tenant = {"Authorization": f"Bearer {served.key}"}
    as_operator = {**as_tenant, "X-Ratoon-Operator": served.admin_key}
    url = served.url + path
    refused = httpx.post(url, json=body, headers=as_tenant)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "not_allowed")
    assert engine.requests == []
    assert httpx.post(url, json=body, headers=as_operator).status_code == 200
    assert [request.loads for request in engine.requests] == ["never"]
