"""`cache_control` in Responses follows the rules of `/v1/messages`."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import Served
from tests.gateway.dialects.openai.test_cache_control import marks, post
from tests.gateway.dialects.openai.test_marks import FIVE, HOUR, covered, seconds, shown

POINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def part(text: str, control: Any = None, kind: str = "input_text") -> dict[str, Any]:
    return {"type": kind, "text": text, **({"cache_control": control} if control else {})}


def user(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts), **fields}


def tool(name: str, control: Any = None) -> dict[str, Any]:
    marked = {"cache_control": control} if control else {}
    return {"type": "function", "name": name, "parameters": {"type": "object"}, **marked}


def ask(served: Served, *items: Any, **fields: Any) -> httpx.Response:
    return post(served, "responses", input=list(items), max_output_tokens=3, **fields)


def test_all_up_to_a_part_is_marked(served: Served, engine: FakeEngine) -> None:
    answer = ask(
        served, user(part("one", HOUR), part("two", FIVE), part("three")), instructions="rules"
    )
    assert answer.status_code == 200
    assert [
        text.endswith(end) for text, end in zip(covered(engine), ("one", "two"), strict=True)
    ] == [True] * 2
    assert seconds(engine) == [3600.0, 300.0]
    ask(served, user(part("one"), part("two")))
    assert marks(engine) == []  # positive control


def test_an_item_is_marked_as_a_whole(served: Served, engine: FakeEngine) -> None:
    said = {"role": "assistant", "content": "noon", "cache_control": FIVE}
    ask(served, user(part("hi")), said, user(part("?")))
    assert [text.endswith("noon") for text in covered(engine)] == [True]
    ask(served, {"role": "user", "content": "hi", "cache_control": HOUR})
    assert marks(engine) == [(0, 3600.0)]
    # If an item and its last part are both marked, they make one mark.
    ask(served, user(part("a"), part("b", FIVE), cache_control=FIVE))
    assert marks(engine) == [(0, 300.0)]


def test_what_a_call_returned_is_marked(served: Served, engine: FakeEngine) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "noon"}
    more = user(part("And?"))
    tools = {"tools": [tool("clock")], "tool_choice": "none"}
    ask(served, user(part("hi")), call, {**result, "cache_control": FIVE}, more, **tools)
    assert [text.endswith("noon") for text in covered(engine)] == [True]
    ask(served, user(part("hi")), call, {**result, "output": [part("noon", HOUR)]}, more, **tools)
    assert seconds(engine) == [3600.0]


def test_a_tool_is_marked_and_no_mark_reaches_the_model(served: Served, engine: FakeEngine) -> None:
    prompts = []
    for control in (None, HOUR):
        tools = [tool("clock", control), tool("alarm")]
        ask(served, user(part("hi")), tools=tools, tool_choice="none")
        prompts.append(shown(engine))
    assert len(set(prompts)) == 1
    [text] = covered(engine)
    assert "clock" in text
    assert "alarm" not in text


def test_the_marks_of_a_stored_response_count_no_more(served: Served, engine: FakeEngine) -> None:
    four = user(*[part("a", FIVE)] * 4, part("b"))
    first = ask(served, four).json()
    assert len(engine.requests[-1].marks) == 4
    again = ask(served, four, previous_response_id=first["id"])
    assert again.status_code == 200
    assert len(engine.requests[-1].marks) == 4


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([user(*[part("a", FIVE)] * 5)], "input[0].content[4].cache_control"),
        ([user(part("a", FIVE), part("b", HOUR))], "input[0].content[1].cache_control.ttl"),
        ([user(part("", FIVE), part("b"))], "input[0].content[0].cache_control"),
        ([user(part("a", FIVE), {**part("b"), **POINT})], "input[0].content[0].cache_control"),
        (
            [user(part("a", {"type": "ephemeral", "ttl": "2h"}))],
            "input[0].content[0].cache_control.ttl",
        ),
    ],
)
def test_marks_that_are_not_allowed_are_named(
    served: Served, engine: FakeEngine, items: list[Any], param: str
) -> None:
    count = len(engine.requests)
    answer = ask(served, *items)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert len(engine.requests) == count
