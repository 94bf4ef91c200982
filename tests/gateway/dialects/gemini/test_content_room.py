"""A cached content that the limits refuse takes no room from the tenant's stored contents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from gateway.config import Bounds
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import MODEL, config_of, serving
from tests.gateway.dialects.gemini.asking import error_of

ROOM = Bounds(max_response_bytes=4000, max_tenant_response_bytes=4000)  # for one content, not two
LIMITED = {"limits": {"tokens_per_minute": 100}}
PATH = "/v1beta/cachedContents"


def content_of(letter: str) -> dict[str, Any]:
    return {"model": MODEL, "contents": [{"parts": [{"text": letter * 2000}]}]}


def test_a_refused_content_replaces_no_stored_content(tiny_model: Path, tmp_path: Path) -> None:
    config = config_of(tiny_model, tmp_path, bounds=ROOM)
    with serving(config, FakeEngine()) as gateway, httpx.Client(base_url=gateway.url) as client:
        key, admin = {"x-goog-api-key": gateway.key}, {"x-api-key": gateway.admin_key}

        def names() -> list[str]:
            found = client.get(PATH, headers=key).json()["cachedContents"]
            return [one["name"] for one in found]

        def limit(change: dict[str, Any]) -> None:
            for tenant in client.get("/admin/tenants", headers=admin).json()["tenants"]:
                place = f"/admin/tenants/{tenant['id']}"
                client.patch(place, json=change, headers=admin).raise_for_status()

        first = client.post(PATH, json=content_of("a"), headers=key).json()["name"]
        limit(LIMITED)
        refused = client.post(PATH, json=content_of("b"), headers=key)
        error_of(refused, 429, "RESOURCE_EXHAUSTED")
        assert names() == [first]
        limit({"limits": {}})
        second = client.post(PATH, json=content_of("b"), headers=key).json()["name"]
        assert names() == [second], "the control: there is room for one"
