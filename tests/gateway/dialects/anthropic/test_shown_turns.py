"""System messages for one turn of the user are shown until the user's next turn.

Anthropic's client asks.
"""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest

from tests.doubles.engine.fake_engine import FakeEngine, prompt_of
from tests.doubles.gateway.served import MODEL
from tests.gateway.dialects.anthropic.asking import CLOCK, USE, error_of, post, shown, user

LEFT = "3,200 tokens are left."
RULES = "All the rules. " * 20


def system(text: Any, clear_at: str | None = "next_user_message", **fields: Any) -> dict[str, Any]:
    return {"role": "system", "content": text, "clear_at": clear_at, **fields}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def prompt(claude: anthropic.Anthropic, engine: FakeEngine, *turns: Any, **fields: Any) -> str:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 3, "messages": list(turns), **fields}
    claude.beta.messages.create(**asked)
    return shown(engine)


def test_it_is_shown_until_a_later_turn_of_the_user(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    first = [user(RULES), system(LEFT)]
    assert prompt(claude, engine, *first) == f"|user:{RULES}|system:{LEFT}|assistant:"
    later = [*first, said("Yes."), user("And?"), system("One is left.")]
    assert prompt(claude, engine, *later) == (
        f"|user:{RULES}|assistant:Yes.|user:And?|system:One is left.|assistant:"
    )


@pytest.mark.parametrize("clear_at", ["never", None])
def test_others_stay(claude: anthropic.Anthropic, engine: FakeEngine, clear_at: str | None) -> None:
    turns = [user("hi"), system(LEFT, clear_at), said("Yes."), user("And?")]
    assert f"|system:{LEFT}|" in prompt(claude, engine, *turns)


def test_the_result_of_a_call_is_a_turn_of_the_user(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    result = {"type": "tool_result", "tool_use_id": USE["id"], "content": "noon"}
    turns = [user("hi"), system(LEFT), {"role": "assistant", "content": [USE]}, user([result])]
    assert LEFT not in prompt(claude, engine, *turns, tools=[CLOCK])


def test_marks_behind_one_that_is_cleared_cover_what_is_shown(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    marked = {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}}
    turns = [user(RULES), system(LEFT), said("Yes."), user([marked]), said("Well."), user("So?")]
    whole = prompt(claude, engine, *turns)
    [mark] = engine.requests[-1].marks
    covered = bytes(min(one, 255) for one in prompt_of(engine.requests[-1])[: mark.num_tokens])
    assert covered.endswith(b"And?")
    assert LEFT not in whole


def test_a_system_message_says_with_which_effort_its_turn_is_answered(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    low = {"role": "system", "output_config": {"effort": "low"}}
    high = {"output_config": {"effort": "high"}}
    assert "effort=low" in prompt(claude, engine, user("hi"), low, **high)
    later = prompt(claude, engine, user("hi"), low, said("Yes."), user("And?"), **high)
    assert "effort=high" in later
    assert "|system:" not in later


@pytest.mark.parametrize(
    ("turn", "param"),
    [
        (user("hi") | {"clear_at": "never"}, "messages[0].clear_at"),
        (user("hi") | {"output_config": {"effort": "low"}}, "messages[0].output_config"),
        (system("hi", "tomorrow"), "messages[0].clear_at"),
        ({"role": "system"}, "messages[0].content"),
        ({"role": "system", "clear_at": "never"}, "messages[0].content"),
        ({"role": "user"}, "messages[0].content"),
    ],
)
def test_what_cannot_be_is_refused(
    http: httpx.Client, engine: FakeEngine, turn: dict[str, Any], param: str
) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = post(http, path, messages=[turn, user("hi")])
        assert error_of(answer, 400, "invalid_request_error")["param"] == param
    assert engine.requests == []
    only = post(http, messages=[{"role": "system", "output_config": {"effort": "low"}}])
    assert error_of(only, 400, "invalid_request_error")["param"] == "messages"
