"""Published prefixes are shared by all tenants, and private blocks by none, in the real server.

Every tenant is new, so it hits only blocks of others. Each test of a miss also has a hit, which
shows that the blocks are cached.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from handbook.texts.handbooks import make_handbook
from tests.doubles.waiting import wait_for
from tests.seams.support.server import Server, running_server

PREFIXES = "/admin/prefixes"
WARM_S = 60.0
HANDBOOK = Path(__file__).parents[3] / "handbook" / "model"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("published")
    settings = {
        "RATOON_CACHE_TOKENS": "6144",  # so small that the cache fills up soon
        "RATOON_HOST_CACHE_TOKENS": "0",  # no tier below the device
        "RATOON_DISK_CACHE_GIB": "0",
        "RATOON_CACHE_SHARING": "pooled",  # one tenant competes with all others for the whole cache
        "RATOON_MODEL": str(model_that_is_shown_tools(directory / "handbook")),
    }
    with running_server(directory / "data", settings) as running:
        yield running


@pytest.fixture(autouse=True)
def taken_back(house: Server) -> Iterator[None]:
    """Delete all prefixes after the test."""
    yield
    for prefix in admin(house, "GET", PREFIXES)["prefixes"]:
        admin(house, "DELETE", f"{PREFIXES}/{prefix['id']}")


def model_that_is_shown_tools(directory: Path) -> Path:
    """Make the handbook model with a chat template that writes tools into the prompt."""
    shutil.copytree(HANDBOOK, directory)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    shown = "{{- bos_token -}}\n{%- if tools %}{{- tools | tojson -}}{% endif -%}\n"
    template = config["chat_template"].replace("{{- bos_token -}}\n", shown)
    assert shown in template
    (directory / "chat_template.jinja").write_text(template)
    return directory


def admin(house: Server, method: str, path: str, **sent: Any) -> Any:
    with house.client(house.admin_key) as client:
        answer = client.request(method, path, **sent)
        answer.raise_for_status()
        return answer.json()


def system_prompt(seed: int, facts: int = 25) -> str:
    return make_handbook(seed, facts).text


def publish(
    house: Server, text: str, scope: str = "all", name: str | None = None, **more: Any
) -> dict[str, Any]:
    """Publish a system message and wait until it is computed."""
    name = name or f"handbook-{uuid.uuid4().hex[:8]}"
    messages = [{"role": "system", "content": text}]
    sent = {"name": name, "scope": scope, "messages": messages, **more}
    made: dict[str, Any] = admin(house, "POST", PREFIXES, json=sent)
    wait_until_warm(house, made["id"])
    return made


def wait_until_warm(house: Server, prefix_id: str) -> None:
    wait_for(lambda: admin(house, "GET", f"{PREFIXES}/{prefix_id}")["state"] == "warm", WARM_S)


def new_tenant(house: Server, group_id: str | None = None) -> tuple[str, str]:
    """Create a tenant; return its id and a key."""
    sent = {"name": f"tenant-{uuid.uuid4().hex}", "group_id": group_id}
    tenant = admin(house, "POST", "/admin/tenants", json=sent)["id"]
    return tenant, admin(house, "POST", f"/admin/tenants/{tenant}/keys", json={})["key"]


def new_group(house: Server) -> str:
    name = f"group-{uuid.uuid4().hex}"
    group: str = admin(house, "POST", "/admin/groups", json={"name": name})["id"]
    return group


def cached(house: Server, key: str, system: str, question: str, **extra: Any) -> int:
    """Return the cached prompt tokens of a chat."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    body = {"model": "handbook", "messages": messages, "max_tokens": 2, "temperature": 0, **extra}
    with house.client(key) as client:
        answer = client.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        tokens: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return tokens


def question(seed: int) -> str:
    """Make a question that fills whole blocks after the published prefix."""
    return f"{seed}. " + " ".join(f"Where is office {seed}{n}?" for n in range(12))


def test_a_published_prefix_is_a_full_hit_for_any_tenants_first_request(house: Server) -> None:
    control, text = system_prompt(1), system_prompt(2)
    made = publish(house, text)
    assert made["blocks"] > 10
    for seed in range(3):
        _, key = new_tenant(house)
        assert cached(house, key, control, question(seed)) == 0
        assert cached(house, key, text, question(seed)) == made["tokens"]


def test_behind_a_published_prefix_nothing_is_shared(house: Server) -> None:
    text = system_prompt(3)
    shared = publish(house, text)["tokens"]
    (_, one), (_, other) = new_tenant(house), new_tenant(house)
    assert cached(house, one, text, question(1)) == shared
    assert cached(house, other, text, question(1)) == shared
    for key in (one, other):
        assert cached(house, key, text, question(1)) > shared + 64


def tool(name: str) -> dict[str, Any]:
    said = f"Looks up {name} in the handbook and tells what is written there."
    parameters = {"type": "object", "properties": {"question": {"type": "string"}}}
    function = {"name": name, "description": said, "parameters": parameters}
    return {"type": "function", "function": function}


def test_published_tools_are_hit_by_chats_that_send_the_same(house: Server) -> None:
    text, tools = system_prompt(13), [tool("offices"), tool("lunch"), tool("holidays")]
    made = publish(house, text, tools=tools)
    with_tools = {"tools": tools, "tool_choice": "none"}
    (_, one), (_, other) = new_tenant(house), new_tenant(house)
    for key in (one, other):
        assert cached(house, key, text, question(1), **with_tools) == made["tokens"]
    assert cached(house, one, text, question(1), **with_tools) > made["tokens"] + 64
    changed = {**with_tools, "tools": [*tools[:2], tool("parking")]}
    shared = cached(house, one, text, question(1), **changed)
    assert 16 <= shared < made["tokens"] // 2  # the prompts are equal up to the third tool
    assert cached(house, other, text, question(1)) < 16


def test_members_of_a_group_share_and_strangers_do_not(house: Server) -> None:
    group, text = new_group(house), system_prompt(4)
    (_, ada), (_, bob), (_, stranger) = (
        new_tenant(house, group),
        new_tenant(house, group),
        new_tenant(house),
    )
    assert cached(house, ada, text, question(1)) == 0
    assert cached(house, bob, text, question(1)) > 200
    assert cached(house, stranger, text, question(1)) == 0
    assert cached(house, bob, text, question(1), cache_salt="s") == 0
    assert cached(house, bob, text, question(1), cache_salt="s") > 200


def test_a_tenant_that_leaves_a_group_loses_its_shared_blocks(house: Server) -> None:
    group, text = new_group(house), system_prompt(5)
    (_, ada), (leaver, bob) = new_tenant(house, group), new_tenant(house, group)
    cached(house, ada, text, question(1))
    assert cached(house, bob, text, question(1)) > 200
    admin(house, "PATCH", f"/admin/tenants/{leaver}", json={"group_id": None})
    wait_for(lambda: cached(house, bob, text, question(uuid.uuid4().int % 9999)) < 16, WARM_S)
    assert cached(house, ada, text, question(1)) > 200


def test_a_prefix_published_for_a_group_is_found_by_its_members_only(house: Server) -> None:
    group, text = new_group(house), system_prompt(6)
    made = publish(house, text, scope=group)
    (_, member), (_, stranger) = new_tenant(house, group), new_tenant(house)
    assert cached(house, member, text, question(1)) == made["tokens"]
    assert cached(house, stranger, text, question(1)) == 0


def test_a_salted_request_has_the_published_part_and_nothing_else(house: Server) -> None:
    text = system_prompt(7)
    shared = publish(house, text)["tokens"]
    _, key = new_tenant(house)
    assert cached(house, key, text, question(1), cache_salt="one") == shared
    assert cached(house, key, text, question(1), cache_salt="one") > shared + 64
    for salt in ({"cache_salt": "two"}, {}):
        assert cached(house, key, text, question(1), **salt) == shared


def test_a_prefix_taken_back_is_private_to_the_next_tenant(house: Server) -> None:
    text = system_prompt(8)
    made = publish(house, text)
    assert cached(house, new_tenant(house)[1], text, question(1)) == made["tokens"]
    admin(house, "DELETE", f"{PREFIXES}/{made['id']}")
    _, key = new_tenant(house)
    assert cached(house, key, text, question(1)) == 0
    assert cached(house, key, text, question(1)) > 200


def test_a_new_version_takes_the_place_of_the_old_one(house: Server) -> None:
    old, new = system_prompt(9), system_prompt(10)
    publish(house, old, name="rules")
    made = publish(house, new, name="rules")
    assert made["version"] == 2
    _, key = new_tenant(house)
    assert cached(house, key, new, question(1)) == made["tokens"]
    assert cached(house, key, old, question(1)) == 0
    admin(house, "DELETE", f"{PREFIXES}/{made['id']}")


def test_a_published_prefix_survives_pressure_a_flush_and_a_new_engine(house: Server) -> None:
    text = system_prompt(11)
    made = publish(house, text)
    full = made["tokens"]
    _, crowd = new_tenant(house)
    pushed = system_prompt(12)
    assert cached(house, crowd, pushed, question(0)) == 0
    for seed in range(20, 30):
        cached(house, crowd, system_prompt(seed, 40), question(seed))
    assert cached(house, new_tenant(house)[1], text, question(1)) == full
    assert cached(house, crowd, pushed, question(0)) < 16
    assert cached(house, crowd, system_prompt(29, 40), question(29)) > 200
    admin(house, "POST", "/admin/cache/flush", json={})
    wait_until_warm(house, made["id"])
    assert cached(house, new_tenant(house)[1], text, question(1)) == full
    # the flush dropped this prompt
    assert cached(house, crowd, system_prompt(29, 40), question(29)) == 0
    killed = house.children()["engine"]
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: house.children().get("engine", killed) != killed, 30)
    house.wait_until_ready(60)
    wait_until_warm(house, made["id"])
    assert cached(house, new_tenant(house)[1], text, question(1)) == full


def test_tenants_cannot_publish(house: Server) -> None:
    made = publish(house, system_prompt(14))
    one = f"{PREFIXES}/{made['id']}"
    messages = [{"role": "system", "content": system_prompt(15)}]
    wanted = {"name": f"handbook-{uuid.uuid4().hex[:8]}", "scope": "all", "messages": messages}
    asked = (("GET", PREFIXES, None), ("GET", one, None), ("POST", PREFIXES, wanted))
    with house.client() as client:
        for method, path, sent in (*asked, ("DELETE", one, None)):
            answer = client.request(method, path, json=sent)
            assert answer.status_code == httpx.codes.UNAUTHORIZED
    listed = {prefix["name"] for prefix in admin(house, "GET", PREFIXES)["prefixes"]}
    assert made["name"] in listed
    assert wanted["name"] not in listed
    for method, path, sent in asked:
        admin(house, method, path, json=sent)  # raises an error if the server refuses
    admin(house, "DELETE", one)
    listed = {prefix["name"] for prefix in admin(house, "GET", PREFIXES)["prefixes"]}
    assert made["name"] not in listed
    assert wanted["name"] in listed
