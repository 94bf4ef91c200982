"""Every tenant for which a prefix is published finds it, until the prefix is deleted.

Two tenants use one gateway over HTTP, with a fake engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import MODEL, Served

SYSTEM = {"role": "system", "content": "Be brief and kind to all who ask you something here."}


def admin(served: Served, method: str, path: str, **sent: Any) -> Any:
    headers = {"authorization": f"Bearer {served.admin_key}"}
    answer = httpx.request(method, f"{served.url}/admin{path}", headers=headers, **sent)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


def cached(served: Served, key: str, words: str, **extra: Any) -> int:
    """Return the cached prompt tokens of a chat."""
    messages = [SYSTEM, {"role": "user", "content": words}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 1, **extra}
    headers = {"authorization": f"Bearer {key}"}
    url = f"{served.url}/v1/chat/completions"
    answer = httpx.post(url, json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


@pytest.fixture
def prefix(served: Served, engine: FakeEngine) -> Iterator[dict[str, Any]]:
    made = admin(served, "POST", "/prefixes", json={"name": "rules", "messages": [SYSTEM]})
    assert engine.wait_until(lambda engine: made["id"] in engine.pinned)
    yield made
    if admin(served, "GET", "/prefixes")["prefixes"]:
        admin(served, "DELETE", f"/prefixes/{made['id']}")


TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Tells what it knows of it."}}
    for name in ("clock", "weather")
]
OTHERS = [TOOLS[0], {**TOOLS[1], "function": {"name": "wind"}}]


@pytest.fixture(params=["with messages", "alone"])
def tool_pack(
    request: pytest.FixtureRequest, served: Served, engine: FakeEngine
) -> Iterator[dict[str, Any]]:
    messages = {} if request.param == "alone" else {"messages": [SYSTEM]}
    sent = {"name": "pack", "tools": TOOLS, **messages}
    made = admin(served, "POST", "/prefixes", json=sent)
    assert engine.wait_until(lambda engine: made["id"] in engine.pinned)
    yield made
    admin(served, "DELETE", f"/prefixes/{made['id']}")


def test_a_chat_with_the_published_tools_finds_them(
    served: Served, tool_pack: dict[str, Any]
) -> None:
    shared = tool_pack["tokens"] // 16 * 16
    assert shared > 128
    for key in (served.key, served.other_key):
        assert cached(served, key, LONG, tools=TOOLS, tool_choice="none") == shared
        assert cached(served, key, LONG, tools=TOOLS, tool_choice="none") > shared


def test_a_chat_with_other_tools_finds_what_they_have_in_common(
    served: Served, tool_pack: dict[str, Any]
) -> None:
    common = json.dumps(TOOLS).index("weather")  # plus the w of "wind", which both prompts share
    other = cached(served, served.key, LONG, tools=OTHERS, tool_choice="none")
    assert other == (2 + len("tools:") + common + 1) // 16 * 16
    assert 0 < other < tool_pack["tokens"] // 16 * 16
    in_another_order = [dict(reversed(tool.items())) for tool in TOOLS]
    assert cached(served, served.key, LONG, tools=in_another_order, tool_choice="none") == 0
    assert cached(served, served.key, LONG) == 0
    assert cached(served, served.other_key, LONG, tools=TOOLS, tool_choice="none") > other


LONG = "and now something that is long enough for blocks of its own"


def test_the_first_request_of_anybody_finds_it(served: Served, prefix: dict[str, Any]) -> None:
    for key in (served.key, served.other_key):
        assert cached(served, key, LONG) == prefix["tokens"] // 16 * 16
        assert cached(served, key, LONG) > prefix["tokens"] // 16 * 16


def test_without_it_no_tenant_finds_anything(served: Served, engine: FakeEngine) -> None:
    assert cached(served, served.key, LONG) == 0
    assert cached(served, served.other_key, LONG) == 0
    assert cached(served, served.other_key, LONG) > 0


def test_a_salted_request_finds_it_and_nothing_behind(
    served: Served, prefix: dict[str, Any]
) -> None:
    full = prefix["tokens"] // 16 * 16
    assert cached(served, served.key, LONG, cache_salt="one") == full
    assert cached(served, served.key, LONG, cache_salt="one") > full
    assert cached(served, served.key, LONG, cache_salt="two") == full
    assert cached(served, served.key, LONG) == full


def test_taken_back_nobody_finds_it(served: Served, prefix: dict[str, Any]) -> None:
    assert cached(served, served.key, LONG) > 0
    admin(served, "DELETE", f"/prefixes/{prefix['id']}")
    assert cached(served, served.other_key, LONG) == 0


def test_group_members_share_until_they_leave(served: Served, engine: FakeEngine) -> None:
    group = admin(served, "POST", "/groups", json={"name": "friends"})["id"]
    tenants = admin(served, "GET", "/tenants")["tenants"]
    for tenant in tenants:
        admin(served, "PATCH", f"/tenants/{tenant['id']}", json={"group_id": group})
    assert cached(served, served.key, LONG) == 0
    assert cached(served, served.other_key, LONG) > 0
    for tenant in tenants:
        admin(served, "PATCH", f"/tenants/{tenant['id']}", json={"group_id": None})
    assert cached(served, served.other_key, LONG) == 0
    admin(served, "DELETE", f"/groups/{group}")


def test_each_tenant_s_namespace_begins_after_the_prefix(
    served: Served, engine: FakeEngine, prefix: dict[str, Any]
) -> None:
    cached(served, served.key, LONG)
    cached(served, served.other_key, LONG)
    one, other = engine.requests
    assert one.namespaces[0] == other.namespaces[0]
    assert [start for start, _ in one.namespaces] == [0, prefix["tokens"] // 16]
    assert one.namespaces[1] != other.namespaces[1]
    shared = prefix["tokens"] // 16 * 16
    assert one.block_keys[:shared] == other.block_keys[:shared]
    assert one.block_keys[shared:] != other.block_keys[shared:]
