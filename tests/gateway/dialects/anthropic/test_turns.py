"""Turns and system blocks reach the prompt complete and in order."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.doubles.engine.fake_engine import FakeEngine
from tests.gateway.dialects.anthropic.asking import HI, USE, assistant, prompt_for, user

MARK = {"type": "ephemeral"}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


@pytest.mark.parametrize(
    ("system", "seen"),
    [
        ("be brief", "|system:be brief"),
        ([text("be brief")], "|system:be brief"),
        ([text("be", cache_control=MARK), text("brief")], "|system:be\nbrief"),
        ([text("be brief", cache_control={**MARK, "ttl": "1h"})], "|system:be brief"),
        ([text("be brief", cache_control=None, citations=None)], "|system:be brief"),
        ("", ""),
        ([], ""),
    ],
    ids=str,
)
def test_the_system(
    claude: anthropic.Anthropic, engine: FakeEngine, system: Any, seen: str
) -> None:
    assert prompt_for(engine, claude, *HI, system=system) == f"{seen}|user:hi|assistant:"


@pytest.mark.parametrize(
    ("turns", "seen"),
    [
        ([user([text("a"), text("b")])], "|user:a\nb"),
        ([user([text("a", cache_control=MARK), text("b")])], "|user:a\nb"),
        ([user([])], "|user:"),
        ([user("a"), user([text("b")]), user("c")], "|user:a\nb\nc"),
        ([user("a"), assistant("b"), assistant("c"), user("d")], "|user:a|assistant:bc|user:d"),
        ([user("a"), {"role": "system", "content": "b"}, user("c")], "|user:a|system:b|user:c"),
        ([assistant("a"), user("b")], "|assistant:a|user:b"),
    ],
    ids=str,
)
def test_turns(
    claude: anthropic.Anthropic, engine: FakeEngine, turns: list[Any], seen: str
) -> None:
    assert prompt_for(engine, claude, *turns) == f"{seen}|assistant:"


def test_turns_of_calls_that_follow_one_another_are_one(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    """Merge consecutive assistant turns with calls: no template accepts two, or a result without
    its call.
    """
    other = {**USE, "id": "toolu_2"}

    def result(of: dict[str, Any]) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": of["id"], "content": of["id"]}

    apart = [assistant([USE]), assistant([other]), user([result(USE)]), user([result(other)])]
    together = [assistant([USE, other]), user([result(USE), result(other)])]
    seen = [prompt_for(engine, claude, *HI, *turns) for turns in (apart, together)]
    assert seen[0] == seen[1]
    assert seen[0].endswith("|tool:clock:toolu_1|tool:clock:toolu_2|assistant:")


def test_a_continued_turn_may_follow_another_of_the_assistants(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    assert prompt_for(engine, claude, *HI, assistant("It"), assistant(" is")) == (
        "|user:hi|assistant:It is"
    )


def test_marks_never_reach_the_template(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    def prompt(mark: dict[str, Any]) -> str:
        return prompt_for(
            engine,
            claude,
            user("a"),
            assistant([{**USE, **mark}]),
            user(
                [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [text("b", **mark)],
                        **mark,
                    }
                ]
            ),
            system=[text("c", **mark)],
            tools=[{"name": "clock", "input_schema": {}, **mark}],
            extra_body=mark,
        )

    assert prompt({"cache_control": MARK}) == prompt({})
