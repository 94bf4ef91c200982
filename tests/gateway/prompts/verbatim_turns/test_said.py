from __future__ import annotations

from typing import Any

import pytest

from gateway.prompts.chats.messages import Message, Reasoning, Text, ToolCall
from gateway.prompts.verbatim_turns.said import Said, canonical, said_by, said_in, without_text
from gateway.turn_formats.pieces import (
    CallArguments,
    CallStarted,
    Piece,
    ReasoningPiece,
    TextPiece,
)

PIECES: list[Piece] = [
    ReasoningPiece("Look "),
    ReasoningPiece("it up."),
    TextPiece(" I look.\n"),
    CallStarted("clock"),
    CallArguments('{"b": 1.0,'),
    CallArguments(' "a": [true]}'),
]


def message(*parts: Text | Reasoning | ToolCall) -> Message:
    return Message("assistant", parts)


THOUGHT = Reasoning("Look it up.")
CALL = ToolCall("clock", {"a": [True], "b": 1}, "call_1")


def test_pieces_and_a_message_say_the_same() -> None:
    told = said_by(message(Reasoning("Look it up."), Text("I look."), CALL))
    assert said_in(PIECES) == told


@pytest.mark.parametrize(
    ("given", "is_same"),
    [
        (message(Reasoning("\nLook it up.\n"), Text("I look. "), CALL), True),
        (message(Text("I look."), CALL), False),
        (message(THOUGHT, Text("I looked."), CALL), False),
        (message(THOUGHT, Text("I look.")), False),
        (message(THOUGHT, Text("I look."), CALL, CALL), False),
        (message(THOUGHT, Text("I look."), ToolCall("clock", {"a": [1], "b": 1})), False),
        (message(THOUGHT, Text("I look."), ToolCall("watch", CALL.arguments)), False),
    ],
)
def test_what_differs_says_something_else(given: Message, is_same: bool) -> None:
    assert (said_by(given) == said_in(PIECES)) == is_same


def test_the_order_of_parts_counts() -> None:
    text, call = PIECES[2:3], PIECES[3:]
    assert said_in([*text, *call]) != said_in([*call, *text])
    assert said_in([*text, TextPiece(" "), *call]) == said_in([*text, *call]), "blanks do not"


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", "", '"{}"'])
def test_a_call_that_was_cut_off_says_nothing(arguments: str) -> None:
    assert said_in([CallStarted("clock"), CallArguments(arguments)]) is None


def test_arguments_are_compared_as_values() -> None:
    assert canonical({"a": 1.0, "b": {"d": 2, "c": None}}) == canonical(
        {"b": {"c": None, "d": 2.0}, "a": 1}
    )
    others: list[dict[str, Any]] = [{"a": 1}, {"a": True}, {"a": "1"}, {"a": 1.5}, {"a": 1e300}]
    assert len({canonical(one) for one in others}) == len(others)


def test_what_is_nested_too_deeply_is_not_compared() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert said_by(message(ToolCall("clock", deep))) is None


def test_a_turn_without_its_text() -> None:
    calls = (("look_up", "{}"),)
    both = Said("Hm.", "So.", calls, ("reasoning", "text", "call", "text"))
    assert without_text(both) == Said("Hm.", "", calls, ("reasoning", "call"))
    between = Said("", "So.", 2 * calls, ("call", "text", "call"))
    assert without_text(between) == Said("", "", 2 * calls, ("call",))
    for whole in (Said("Hm.", "So.", (), ("reasoning", "text")), Said("", "", calls, ("call",))):
        assert without_text(whole) == whole
