"""`cache_control` marks all text up to its block, and usage counts created and read tokens.

Anthropic's client asks.
"""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest

from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import MODEL
from tests.gateway.dialects.anthropic.asking import ALARM, CLOCK, HI, ask, post, shown, user

FIVE, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
LONG = "All the rules. " * 20


def text(what: str, mark: Any = None) -> dict[str, Any]:
    return {"type": "text", "text": what, "cache_control": mark}


def covered(engine: FakeEngine) -> list[str]:
    """Return the prompt text up to each mark of the last request."""
    whole = shown(engine)
    return [whole[: mark.num_tokens - 1] for mark in engine.requests[-1].marks]


def seconds(engine: FakeEngine) -> list[float]:
    return [mark.seconds for mark in engine.requests[-1].marks]


def test_a_mark_covers_all_up_to_its_block(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    ask(
        claude,
        tools=[{**CLOCK, "cache_control": HOUR}, ALARM],
        system=[text("rules", HOUR), text("more")],
        messages=[user([text("one", FIVE), text("two")]), user([text("three", FIVE)])],
    )
    tools, system, one, end = covered(engine)
    assert "tells the time" in tools
    assert "alarm" not in tools
    assert system.endswith("|system:rules")
    assert one.endswith("|user:one")
    assert end == shown(engine)
    assert seconds(engine) == [3600.0, 3600.0, 300.0, 300.0]


def test_marks_stand_behind_what_is_shown(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    header = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli;"
    ask(
        claude,
        system=[text(header), text("rules", HOUR)],
        messages=[user([text("one", FIVE), text("two")])],
    )
    system, one = covered(engine)
    assert header not in shown(engine)
    assert system.endswith("|system:rules")
    assert one.endswith("|user:one")


def test_without_a_mark_nothing_is_marked_and_nothing_created(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    for _ in range(2):
        usage = ask(claude, system=LONG).usage
    assert engine.requests[-1].marks == ()
    assert usage.cache_creation_input_tokens == 0
    assert (usage.cache_read_input_tokens or 0) > 0


def test_what_is_created_and_read_and_the_rest_make_up_the_prompt(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    asked: dict[str, Any] = {
        "system": [text(LONG, HOUR)],
        "messages": [user([text(LONG, FIVE), text("and this")])],
    }
    total = claude.messages.count_tokens(model=MODEL, **asked).input_tokens
    first, second = (ask(claude, **asked).usage for _ in range(2))
    for usage in (first, second):
        created, read = usage.cache_creation_input_tokens, usage.cache_read_input_tokens
        assert usage.input_tokens + (created or 0) + (read or 0) == total
        parts = usage.cache_creation
        assert parts is not None
        assert parts.ephemeral_1h_input_tokens + parts.ephemeral_5m_input_tokens == created
    assert first.cache_creation is not None
    assert first.cache_creation.ephemeral_1h_input_tokens > 200
    assert first.cache_creation.ephemeral_5m_input_tokens > 200
    assert first.cache_read_input_tokens == 0
    assert second.cache_creation_input_tokens == 0
    assert (second.cache_read_input_tokens or 0) >= (first.cache_creation_input_tokens or 0)


def test_a_stream_tells_it_at_its_start_and_again_at_its_end(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    asked: dict[str, Any] = {"system": [text(LONG, FIVE)], "messages": HI}
    with claude.messages.stream(model=MODEL, max_tokens=5, **asked) as stream:
        events = list(stream)
    [start] = [one.message.usage for one in events if one.type == "message_start"]
    [end] = [one.usage for one in events if one.type == "message_delta"]
    assert (start.cache_creation_input_tokens or 0) > 200
    assert end.cache_creation_input_tokens == start.cache_creation_input_tokens
    assert end.input_tokens == start.input_tokens


def test_the_mark_beside_the_turns_stands_at_the_end(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    ask(claude, cache_control=HOUR)
    assert (covered(engine), seconds(engine)) == ([shown(engine)], [3600.0])
    ask(claude, cache_control=FIVE, messages=[user([text("hi", FIVE)])])
    assert (covered(engine), seconds(engine)) == ([shown(engine)], [300.0])


def test_a_result_that_is_marked_inside_is_marked(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "clock", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("noon", FIVE)]}
    turns = [user("hi"), {"role": "assistant", "content": [use]}, user([result, text("so?")])]
    ask(claude, tools=[CLOCK], messages=turns)
    assert [one.rpartition(":")[2] for one in covered(engine)] == ["noon"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [user([text("a", FIVE)] * 5)]}, "messages[0].content[4].cache_control"),
        (
            {"cache_control": FIVE, "messages": [user([*[text("a", FIVE)] * 4, text("b")])]},
            "cache_control",
        ),
        (
            {"messages": [user([text("a", FIVE), text("b", HOUR)])]},
            "messages[0].content[1].cache_control.ttl",
        ),
        ({"system": [text("a", FIVE)], "cache_control": HOUR}, "cache_control.ttl"),
        ({"cache_control": HOUR, "messages": [user([text("a", FIVE)])]}, "cache_control.ttl"),
        ({"messages": [user([text("", FIVE), text("b")])]}, "messages[0].content[0].cache_control"),
        (
            {
                "messages": [
                    user("a"),
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "hm", "cache_control": FIVE},
                            text("b"),
                        ],
                    },
                    user("c"),
                ]
            },
            "messages[1].content[0].cache_control",
        ),
    ],
)
def test_marks_that_are_not_allowed(
    http: httpx.Client, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    answer = post(http, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert engine.requests == []
    four = [text("a", HOUR), text("b", HOUR), text("c", FIVE), text("d", FIVE)]
    assert post(http, messages=[user(four)]).status_code == 200, "the control"
