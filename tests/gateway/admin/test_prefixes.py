from __future__ import annotations

from typing import Any

import pytest

from engine.errors import NoRoomToPin
from gateway.state.records import PublishedPrefix
from tests.gateway.admin.office import Office, body, error_of

RULES = "Be brief. Be kind. " * 3  # 57 characters, each of which is one token
SYSTEM = [{"role": "system", "content": RULES}]
TOOLS = [{"type": "function", "function": {"name": "clock"}}]
SHOWN = len('tools:[{"type": "function", "function": {"name": "clock"}}]')


async def publish(office: Office, name: str = "rules", **sent: Any) -> dict[str, Any]:
    answer = await office.operator.post("/admin/prefixes", json={"name": name, **sent})
    assert answer.status_code == 201, answer.text
    return body(answer)


async def shown(office: Office, prefix_id: str) -> dict[str, Any]:
    return body(await office.operator.get(f"/admin/prefixes/{prefix_id}"))


async def listed(office: Office) -> list[tuple[str, int]]:
    prefixes = body(await office.operator.get("/admin/prefixes"))["prefixes"]
    return [(prefix["name"], prefix["version"]) for prefix in prefixes]


async def test_a_prefix_is_published_shown_and_taken_back(office: Office) -> None:
    made = await publish(office, messages=SYSTEM)
    # BOS and two turn tokens; the next turn has only begun
    tokens = 2 + len("system:") + len(RULES) + 1
    assert (made["version"], made["scope"]) == (1, "all")
    assert (made["tokens"], made["blocks"]) == (tokens, tokens // 16 + 1)
    assert set(made) == {
        *("id", "name", "version", "scope", "created_at", "tokens", "blocks", "state", "reason")
    }
    assert (await shown(office, made["id"]))["state"] == "warm"
    source = {"messages": SYSTEM, "text": None, "tools": None}
    assert (await shown(office, made["id"]))["source"] == source
    assert office.engine.pinned == {made["id"]: tokens // 16 + 1}
    assert await listed(office) == [("rules", 1)]
    path = f"/admin/prefixes/{made['id']}"
    assert body(await office.operator.delete(path)) == {"id": made["id"]}
    assert await listed(office) == []
    for gone in (await office.operator.get(path), await office.operator.delete(path)):
        assert error_of(gone)[:2] == (404, "not_found")
    assert office.engine.pinned == {}


async def test_tools_are_published_with_messages_and_alone(office: Office) -> None:
    alone = await publish(office, tools=TOOLS)
    assert alone["tokens"] == 2 + SHOWN + 1  # BOS and two turn tokens; the next turn has only begun
    assert (await shown(office, alone["id"]))["state"] == "warm"
    both = await publish(office, tools=TOOLS, messages=SYSTEM)
    assert both["tokens"] == alone["tokens"] + len("system:") + len(RULES) + 1
    assert (await office.store.get(PublishedPrefix, both["id"])).source.tools == TOOLS
    none = await publish(office, tools=[], messages=SYSTEM)
    assert none["tokens"] == both["tokens"] - SHOWN - 1
    assert (await office.store.get(PublishedPrefix, none["id"])).source.tools is None
    audited = (await office.operator.get("/admin/audit")).text
    assert "rules" in audited
    assert "clock" not in audited


async def test_a_new_version_takes_the_place_of_the_old_one(office: Office) -> None:
    first = await publish(office, text=RULES)
    second = await publish(office, text=RULES + "Be quick.")
    other = await publish(office, "others", text="Mind the gap between the blocks")
    assert (first["version"], second["version"], other["version"]) == (1, 2, 1)
    assert await listed(office) == [("rules", 2), ("others", 1)]
    await shown(office, other["id"])
    assert set(office.engine.pinned) == {second["id"], other["id"]}
    await office.operator.delete(f"/admin/prefixes/{second['id']}")
    assert await listed(office) == [("others", 1)]  # the first prefix is not listed again
    assert (await publish(office, text=RULES))["version"] == 3


async def test_what_is_published_already_is_said_and_makes_no_version(office: Office) -> None:
    first = await publish(office, text=RULES)
    body = {"name": "rules", "text": RULES}
    again = await office.operator.post("/admin/prefixes", json=body)
    assert (again.status_code, again.json()["id"], again.json()["version"]) == (200, first["id"], 1)
    assert (await office.operator.get("/admin/audit")).text.count("prefix.create") == 1
    changed = await office.operator.post("/admin/prefixes", json=body | {"text": RULES + "Now."})
    assert (changed.status_code, changed.json()["version"]) == (201, 2)


async def test_what_was_said_goes_with_the_prefix(office: Office) -> None:
    made = await publish(office, text=RULES)
    assert (await office.store.get(PublishedPrefix, made["id"])).source.text == RULES
    await office.operator.delete(f"/admin/prefixes/{made['id']}")
    gone = await office.store.get(PublishedPrefix, made["id"])
    assert gone.source.text is None
    assert gone.tokens == made["tokens"]


async def test_a_prefix_is_for_a_group_that_is_there_and_keeps_it(office: Office) -> None:
    group = body(await office.operator.post("/admin/groups", json={"name": "friends"}))["id"]
    made = await publish(office, text=RULES, scope=group)
    assert made["scope"] == group
    missing = await office.operator.post(
        "/admin/prefixes", json={"name": "other", "text": RULES, "scope": "gr_none"}
    )
    assert error_of(missing)[:2] == (404, "not_found")
    held = await office.operator.delete(f"/admin/groups/{group}")
    assert error_of(held)[:2] == (409, "conflict")
    await office.operator.delete(f"/admin/prefixes/{made['id']}")
    assert (await office.operator.delete(f"/admin/groups/{group}")).status_code == 200


@pytest.mark.parametrize(
    ("sent", "code", "param"),
    [
        ({"text": RULES, "tools": TOOLS}, "invalid_value", "tools"),
        ({"text": RULES, "tools": {}}, "invalid_value", "tools"),
        (
            {"messages": SYSTEM, "tools": [{"type": "function"}]},
            "missing_required_parameter",
            "tools[0].function",
        ),
        (
            {"tools": [*TOOLS, {"type": "web_search"}]},
            "unsupported_parameter",
            "tools[1].type",
        ),
        ({"tools": []}, "invalid_value", "messages"),
        ({}, "invalid_value", "messages"),
        ({"text": RULES, "messages": SYSTEM}, "invalid_value", "messages"),
        ({"messages": [{"role": "user"}]}, "invalid_value", "messages[0].content"),
        ({"messages": [{"role": "king", "content": "x"}]}, "invalid_value", "messages[0].role"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
            "missing_required_parameter",
            "messages[0].tool_calls[0].function",
        ),
        ({"text": "short"}, "prefix_too_short", None),
        ({"text": "x" * 4096}, "context_length_exceeded", None),
        ({"text": "x" * 1600}, "pin_too_large", None),  # the fake engine can pin 8 blocks
        ({"text": RULES, "name": " rules"}, "invalid_value", "name"),
        ({"text": RULES, "pinned": True}, "invalid_value", "pinned"),
    ],
)
async def test_what_cannot_be_published_is_refused(
    office: Office, sent: dict[str, Any], code: str, param: str | None
) -> None:
    answer = await office.operator.post("/admin/prefixes", json={"name": "rules", **sent})
    assert error_of(answer) == (400, code, param)
    assert await listed(office) == []
    assert office.engine.pinned == {}


async def test_together_they_are_bounded_but_a_new_version_replaces_the_old(
    office: Office,
) -> None:
    await publish(office, text="x" * 96)  # this prefix takes six of the eight blocks
    await office.operator.get("/admin/prefixes")
    full = await office.operator.post("/admin/prefixes", json={"name": "b", "text": "y" * 64})
    assert error_of(full)[:2] == (409, "no_room_to_pin")
    assert (await publish(office, text="z" * 96))["version"] == 2


async def test_without_an_engine_nothing_is_published(office: Office) -> None:
    made = await publish(office, text=RULES)
    office.engine.connected = False
    answer = await office.operator.post("/admin/prefixes", json={"name": "b", "text": RULES})
    assert error_of(answer)[:2] == (503, "overloaded")
    assert (await shown(office, made["id"]))["state"] == "no engine"


async def test_what_the_engine_refuses_is_shown_with_its_reason(office: Office) -> None:
    office.engine.pin_error = NoRoomToPin("others hold the blocks")
    made = await publish(office, text=RULES)
    seen = await shown(office, made["id"])
    assert (seen["state"], seen["reason"]) == ("refused", "others hold the blocks")


async def test_the_audit_log_says_who_published_what_but_not_its_text(office: Office) -> None:
    made = await publish(office, text=RULES)
    await office.operator.delete(f"/admin/prefixes/{made['id']}")
    answer = await office.operator.get("/admin/audit")
    entries = body(answer)["entries"]
    assert [(entry["action"], entry["target"]) for entry in entries] == [
        ("prefix.delete", made["id"]),
        ("prefix.create", made["id"]),
    ]
    assert entries[1]["detail"] == {
        "name": "rules",
        "version": 1,
        "scope": "all",
        "tokens": made["tokens"],
    }
    assert RULES not in answer.text


async def test_a_handbook_may_be_larger_than_other_bodies(office: Office) -> None:
    answer = await office.operator.post(
        "/admin/prefixes", json={"name": "long", "text": "x" * 200_000}
    )
    assert error_of(answer)[1] == "context_length_exceeded"  # and not request_too_large
    answer = await office.operator.post(
        "/admin/prefixes", json={"name": "long", "text": "x" * (4 << 20)}
    )
    assert error_of(answer)[:2] == (413, "request_too_large")
