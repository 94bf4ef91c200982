from __future__ import annotations

import random
from collections import Counter

from handbook.training.facts import UNKNOWN
from handbook.training.names import Source, Split
from handbook.training.tool_chats import ToolChat, ToolTurn, make_tool_chat, write_bare_chat
from handbook.training.tools import NOT_FOUND

CHATS = [make_tool_chat(seed, facts=seed % 25, turns=6) for seed in range(150)]
TURNS = [(chat, turn) for chat in CHATS for turn in chat.turns]


def labelled(label: str) -> list[tuple[ToolChat, ToolTurn]]:
    return [(chat, turn) for chat, turn in TURNS if turn.label == label]


def test_the_same_seed_writes_the_same_chat() -> None:
    assert make_tool_chat(3, 5, 2) == make_tool_chat(3, 5, 2)
    others = {str(make_tool_chat(seed, 5, 2, split)) for seed in range(9) for split in Split}
    assert len(others) == 18


def test_every_sort_of_turn_comes_up() -> None:
    labels = Counter(turn.label for _, turn in TURNS)
    assert labels.keys() == {"stated", "talk", "no tool", "result", "nothing found"}
    assert min(labels.values()) > 10
    assert {turn.sort for _, turn in TURNS} == {"", "lookup", "search", "getter"}


def test_what_the_handbook_states_is_answered_from_it() -> None:
    for chat, turn in labelled("stated"):
        assert [message["role"] for message in turn.messages] == ["user", "assistant"]
        assert turn.messages[-1]["content"] in chat.system


def test_a_call_is_of_a_tool_that_is_offered_and_its_result_is_the_answer() -> None:
    for chat, turn in labelled("result"):
        user, called, result, answer = turn.messages
        assert [one["role"] for one in turn.messages] == ["user", "assistant", "tool", "assistant"]
        [call] = called["tool_calls"]
        [tool] = [one for one in chat.tools if one.name == call["function"]["name"]]
        assert call["function"] == tool.call(turn.question)
        assert turn.question.subject.lower() in user["content"].lower()
        text, said = result["content"], answer["content"]
        in_fields = all(part in text for part in said.removesuffix(" degrees").split(", "))
        assert said in text or "\\u" in text or in_fields
        assert answer["content"] != UNKNOWN


def test_a_result_that_finds_nothing_is_said_not_asked_again() -> None:
    for _, turn in labelled("nothing found"):
        assert turn.messages[2]["content"] in NOT_FOUND
        assert turn.messages[3] == {"role": "assistant", "content": UNKNOWN}


def test_where_no_tool_knows_the_kind_nothing_is_called() -> None:
    for chat, turn in labelled("no tool"):
        assert turn.messages[-1]["content"] == UNKNOWN
        assert all(tool.kind is not None for tool in chat.tools), "a lookup knows every kind"


def test_no_call_is_for_what_the_handbook_states() -> None:
    for chat, turn in labelled("result") + labelled("nothing found"):
        stated = {
            (other.question.noun, other.question.subject)
            for other in chat.turns
            if other.label == "stated"
        }
        assert (turn.question.noun, turn.question.subject) not in stated


def test_tools_of_a_chat_have_different_kinds() -> None:
    for chat in CHATS:
        kinds = [tool.kind.name if tool.kind else "" for tool in chat.tools]
        assert len(set(kinds)) == len(kinds)
        assert 1 <= len(kinds) <= 3


def test_where_no_tool_is_offered_nothing_is_called_and_the_handbook_still_answers() -> None:
    source = Source(random.Random("bare"), Split.TRAIN)
    chats = [write_bare_chat(source, facts, 4) for facts in (0, 0, 6) for _ in range(60)]
    labels = Counter(turn.label for chat in chats for turn in chat.turns)
    assert set(labels) == {"talk", "stated", "no tool"}
    assert labels["no tool"] > labels["stated"] > 0
    for chat in chats:
        assert not chat.schemas
        assert not any(message.get("tool_calls") for message in chat.messages)
        for turn in chat.turns:
            answer = turn.messages[-1]["content"]
            assert (answer == UNKNOWN) == (turn.label == "no tool")
    asked = " ".join(turn.question.text for chat in chats for turn in chat.turns)
    assert "weather" in asked
    assert "running" in asked, "what tools know is asked"
