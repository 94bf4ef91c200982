"""In every dialect, a salt separates a prompt's blocks from those of the same prompt without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import MODEL, Served

SAID = [{"role": "user", "content": "x" * 200}]
CONTENTS = [{"parts": [{"text": "x" * 200}]}]
CHAT = "/v1/chat/completions"
# for each route: a body, and the name of the salt's field
ROUTES: dict[str, tuple[dict[str, Any], str]] = {
    CHAT: ({"messages": SAID, "max_tokens": 2}, "cache_salt"),
    "/v1/completions": ({"prompt": "x" * 200, "max_tokens": 2}, "cache_salt"),
    "/v1/embeddings": ({"input": "x" * 200}, "cache_salt"),
    "/v1/responses": ({"input": "x" * 200, "max_output_tokens": 16}, "cache_salt"),
    "/v1/messages": ({"messages": SAID, "max_tokens": 2}, "cache_salt"),
    f"/v1beta/models/{MODEL}:generateContent": ({"contents": CONTENTS}, "cacheSalt"),
    f"/v1beta/models/{MODEL}:embedContent": ({"content": CONTENTS[0]}, "cacheSalt"),
}


@pytest.fixture
def http(served: Served, engine: FakeEngine) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {served.key}"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=60) as client:
        yield client


@pytest.mark.parametrize("path", ROUTES)
def test_a_salt_is_a_namespace_of_its_own(
    http: httpx.Client, engine: FakeEngine, path: str
) -> None:
    body, name = ROUTES[path]

    def namespaces(**salt: str) -> Any:
        http.post(path, json={"model": MODEL, **body, **salt}).raise_for_status()
        return engine.requests[-1].namespaces

    plain, one, other = namespaces(), namespaces(**{name: "a"}), namespaces(**{name: "b"})
    assert plain != one != other != plain
    assert (namespaces(), namespaces(**{name: "a"})) == (plain, one), "the control"
    assert http.post(path, json={"model": MODEL, **body, name: ""}).status_code == 400
