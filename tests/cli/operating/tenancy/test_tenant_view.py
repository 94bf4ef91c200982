"""`ratoon tenants show` shows a tenant's settings and, if there is an engine, its cache.

The gateway is real, with a fake engine.
"""

import httpx
import pytest

from engine.errors import EngineUnavailable
from tests.cli.console import Ratoon
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import Served


def shown(ratoon: Ratoon, tenant: str) -> list[list[str]]:
    return [line.split("\t") for line in ratoon(f"tenants show {tenant}").out.splitlines()]


def test_a_tenant_is_shown_whole(ratoon: Ratoon, gateway: Served) -> None:
    ratoon("tenants create whole --weight 2")
    ratoon("groups create crew")
    ratoon("groups join crew whole")
    ratoon("tenants limits whole --requests-per-minute 600 --budget 5 --priority batch")
    ratoon("tenants quota whole --floor 0.25")
    issued = ratoon("tenants keys create whole --json").json
    headers = {"Authorization": f"Bearer {issued['key']}"}
    body = {"model": "tiny", "prompt": "x" * 64, "max_tokens": 1}
    httpx.post(f"{gateway.url}/v1/completions", json=body, headers=headers).raise_for_status()
    lines = shown(ratoon, "whole")
    for line in (
        ["name", "whole"],
        ["state", "enabled"],
        ["group", "crew"],
        ["priority", "batch"],
        ["cache", "floor 0.25, ceiling 1, weight 2"],
        ["limits", "requests per minute: 600"],
        ["limits", "budget: 5 units, month"],
    ):
        assert line in lines
    assert [issued["record"]["id"], "live"] in [[one[0], one[2]] for one in lines if len(one) == 5]
    assert issued["key"] not in str(lines)
    found = ratoon("tenants show whole --json").json
    assert set(found) == {"tenant", "group", "keys", "usage", "cache"}
    ratoon("groups leave whole")
    ratoon("groups delete crew")
    assert ["group", "-"] in shown(ratoon, "whole")


async def refuse(_: object) -> None:
    """Raise the error of a link that has no engine."""
    raise EngineUnavailable("no engine")


def test_without_an_engine_the_rest_is_shown(
    ratoon: Ratoon, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "answer", refuse)
    printed = ratoon("tenants show demo --json")
    assert printed.json["cache"] is None
    assert printed.json["tenant"]["name"] == "demo"


def test_a_tenant_that_is_not_there_is_named(ratoon: Ratoon) -> None:
    printed = ratoon("tenants show nobody")
    assert printed.status == 2
    assert "there is no tenant 'nobody'" in printed.err
