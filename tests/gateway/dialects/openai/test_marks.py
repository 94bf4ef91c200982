"""Anthropic's `cache_control` in OpenAI's chats follows the rules of `/v1/messages`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doubles.engine.fake_engine import FakeEngine, prompt_of
from tests.doubles.gateway.served import Served
from tests.gateway.dialects.openai.test_cache_control import chat, marks, part, user

FIVE, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
LONG = "All the rules. " * 20


def marked(text: str, control: Any = FIVE) -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": control}


def tool(name: str, control: Any = None, inner: Any = None) -> dict[str, Any]:
    function = {"name": name, "parameters": {"type": "object"}}
    return {
        "type": "function",
        "function": {**function, **({"cache_control": inner} if inner else {})},
        **({"cache_control": control} if control else {}),
    }


def said(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def shown(engine: FakeEngine) -> str:
    return bytes(min(one, 255) for one in prompt_of(engine.requests[-1])).decode("latin1")


def covered(engine: FakeEngine) -> list[str]:
    """Return the prompt text up to each mark of the last request."""
    whole = shown(engine)
    return [whole[: mark.num_tokens] for mark in engine.requests[-1].marks]


def seconds(engine: FakeEngine) -> list[float]:
    return [mark.seconds for mark in engine.requests[-1].marks]


def test_a_mark_covers_all_up_to_its_block(served: Served, engine: FakeEngine) -> None:
    answer = chat(
        served,
        said("system", [marked("rules", HOUR), part("more")]),
        user(marked("one"), part("two")),
        user(part("three"), marked("four")),
        tools=[tool("clock", HOUR), tool("alarm")],
        tool_choice="none",
    )
    assert answer.status_code == 200, answer.text
    tools, system, one, end = covered(engine)
    assert "clock" in tools
    assert "alarm" not in tools
    assert system.endswith("rules")
    assert one.endswith("one")
    assert end == shown(engine)
    assert seconds(engine) == [3600.0, 3600.0, 300.0, 300.0]


def test_a_message_without_parts_is_marked_as_a_whole(served: Served, engine: FakeEngine) -> None:
    chat(served, said("system", "rules", cache_control=HOUR), said("user", "hi"))
    assert [one.endswith("rules") for one in covered(engine)] == [True]
    assert seconds(engine) == [3600.0]
    chat(served, said("user", "hi"), said("assistant", "noon", cache_control=FIVE), user(part("?")))
    assert [one.endswith("noon") for one in covered(engine)] == [True]
    # If a message and its last part are both marked, they make one mark.
    chat(served, said("user", [part("a"), marked("b")], cache_control=FIVE))
    assert marks(engine) == [(0, 300.0)]


def test_no_mark_reaches_the_model(served: Served, engine: FakeEngine) -> None:
    prompts = []
    for control, inner in ((None, None), (FIVE, None), (None, HOUR)):
        chat(
            served,
            user(marked(LONG, control)),
            tools=[tool("clock", control, inner)],
            tool_choice="none",
        )
        prompts.append(shown(engine))
        assert len(engine.requests[-1].marks) == (control is not None) + bool(control or inner)
    assert len(set(prompts)) == 1
    assert "ephemeral" not in prompts[0]


def test_what_was_written_is_told(served: Served, engine: FakeEngine) -> None:
    asked = (said("system", [marked(LONG)]), user(part("hi")))
    first, second = (
        chat(served, *asked).json()["usage"]["prompt_tokens_details"] for _ in range(2)
    )
    assert first["cache_write_tokens"] > 200
    assert (first["cached_tokens"], second["cache_write_tokens"]) == (0, 0)
    assert second["cached_tokens"] >= first["cache_write_tokens"]


def test_the_prompts_end_is_one_of_the_marks(served: Served, engine: FakeEngine) -> None:
    three = [marked("a")] * 3
    chat(served, user(*three, part("b")), prompt_cache_retention="24h")
    assert seconds(engine) == [300.0, 300.0, 300.0, 86400.0]
    count = len(engine.requests)
    answer = chat(served, user(*three, marked("b"), part("c")), prompt_cache_retention="24h")
    assert answer.status_code == 400
    assert len(engine.requests) == count
    chat(served, user(*three, marked("b"), part("c")), prompt_cache_options={"mode": "explicit"})
    assert seconds(engine) == [300.0] * 4


POINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [user(*[marked("a")] * 5)]}, "messages[0].content[4].cache_control"),
        (
            {"messages": [user(marked("a"), marked("b", HOUR))]},
            "messages[0].content[1].cache_control.ttl",
        ),
        (
            {"messages": [user(marked("a", HOUR))], "tools": [tool("clock", FIVE)]},
            "messages[0].content[0].cache_control.ttl",
        ),
        ({"messages": [user(marked(""), part("b"))]}, "messages[0].content[0].cache_control"),
        (
            {"messages": [user(marked("a"), {**part("b"), **POINT})]},
            "messages[0].content[0].cache_control",
        ),
        (
            {"messages": [user(marked("a", {"type": "ephemeral", "ttl": "2h"}))]},
            "messages[0].content[0].cache_control.ttl",
        ),
        ({"tools": [tool("clock", {"type": "always"})]}, "tools[0].cache_control.type"),
        (
            {"tools": [tool("clock", None, {"type": "always"})]},
            "tools[0].function.cache_control.type",
        ),
    ],
)
def test_marks_that_are_not_allowed(
    served: Served, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    asked = {"messages": [user(part("a"))], **fields}
    answer = chat(served, *asked.pop("messages"), **asked)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert engine.requests == []
    four = [marked("a", HOUR), marked("b", HOUR), marked("c"), marked("d")]
    assert chat(served, user(*four)).status_code == 200, "the control"
