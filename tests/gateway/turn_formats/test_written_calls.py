"""Formats write calls for templates that show none, and read back what they wrote."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.prompts.chats.messages import Message, Text, ToolCall
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.turn_formats.families.named.glm4 import Glm4Format
from gateway.turn_formats.families.named.pythonic import Lfm2Format
from gateway.turn_formats.turn_format import WrittenCall
from tests.gateway.turn_formats.formats import FORMATS
from tests.gateway.turn_formats.turns import calls_of, read, text
from tests.zoo.families import family

ARGUMENTS: dict[str, Any] = {
    "city": "Troms\u00f8 \"a\" 'b' \\ <b>\nsouth",
    "days": 3,
    "exact": True,
    "where": {"at": [1.5, None, {"deep": "yes"}]},
    "tags": ["a, b", "c'd"],
}
CALLS: list[WrittenCall] = [("get_weather", ARGUMENTS), ("clock", {})]
MARKED = (
    "hermes",
    "granite",
    "lfm2",
    "nemotron_mini",
    "phi4_mini",
    "qwen3_coder",
    "glm45",
    "minimax_m2",
)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("said", ["", "Let me look."])
def test_a_format_reads_the_calls_that_it_writes(name: str, said: str) -> None:
    turns = FORMATS[name].format().turns(said, CALLS)
    if turns is None:
        assert name not in MARKED
        return
    if name == Glm4Format.name:
        turns = [{"content": _of_glm(turn)} for turn in turns if "metadata" in turn]
        said = ""
    written = "<|assistant|>".join(turn["content"] for turn in turns)
    pieces = read(FORMATS[name].parser(), [written])
    assert calls_of(pieces) == CALLS
    assert [one for one in pieces if one == text(said)] == ([text(said)] if said else [])


def _of_glm(turn: Any) -> str:
    """Write a message as GLM-4's template does."""
    return f"{turn['metadata']}\n{turn['content']}"


def test_glm_4_gets_each_call_and_each_text_as_a_message() -> None:
    said, first, second = Glm4Format().turns("Hm.", CALLS) or ()
    assert said == {"content": "Hm."}
    assert [one["metadata"] for one in (first, second)] == ["get_weather", "clock"]


def test_lfm2_s_calls_are_written_as_its_later_template_shows_them() -> None:
    plain = {"days": 3, "exact": True, "where": {"at": [1, None]}, "none": None}
    calls = tuple(ToolCall(name, plain) for name in ("get_weather", "clock"))
    template = ChatTemplate(family("lfm2").template(), {"bos_token": ""})
    messages = [Message("user", (Text("Hi."),)), Message("assistant", (Text("So."), *calls))]
    shown = template.render(messages, add_generation_prompt=False).text
    [turn] = Lfm2Format().turns("So.", [(one.name, one.arguments) for one in calls]) or ()
    assert f"assistant\n{turn['content']}<|im_end|>" in shown
