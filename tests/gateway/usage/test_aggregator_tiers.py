"""The tiers of cached tokens are shown only to tenants whom the operator allows to see them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.doubles.gateway.served import MODEL, Served

ENTRIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
]


def details(served: Served, path: str, prompt: dict[str, Any], **headers: str) -> dict[str, Any]:
    body = {"model": MODEL, "max_tokens": 2, **prompt}
    bearer = {"Authorization": f"Bearer {served.key}", **headers}
    answer = httpx.post(served.url + path, json=body, headers=bearer)
    assert answer.status_code == 200
    if not prompt.get("stream"):
        whole: dict[str, Any] = answer.json()
    else:
        events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        whole = json.loads(events[-1])
    found: dict[str, Any] = whole["usage"]["prompt_tokens_details"]
    return found


@pytest.mark.parametrize(("path", "prompt"), ENTRIES)
@pytest.mark.parametrize("more", [{}, {"stream": True, "stream_options": {"include_usage": True}}])
def test_a_tenant_sees_how_much_was_cached_and_the_operator_where(
    served: Served, path: str, prompt: dict[str, Any], more: dict[str, Any]
) -> None:
    assert set(details(served, path, prompt | more)) == {"cached_tokens", "cache_write_tokens"}
    header = {"X-Ratoon-Operator": served.admin_key}
    seen = details(served, path, prompt | more, **header)
    assert set(seen["ratoon"]) == {"device", "host", "disk"}
