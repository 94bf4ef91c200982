"""Texts of llama.cpp's own tests of chats give the messages that these tests expect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.generation_request import AnswerForm
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.tokenizer import Tokenizer
from gateway.prompts.verbatim_turns.said import said_in
from gateway.turn_formats.reading import TurnReader
from gateway.turn_formats.turn_format import ToolSpec
from tests.gateway.turn_formats.turns import read
from tests.zoo.families import FAMILIES
from tests.zoo.family import Family
from tests.zoo.here import here
from tests.zoo.more_families import MORE
from tests.zoo.sources import LLAMA_CPP
from tests.zoo.templates import LlamaCpp
from tests.zoo.turns.llama_cpp_chats import Case, cases_in

pytestmark = pytest.mark.zoo

FAMILY = {
    f"{source.name}.jinja": one
    for one in (*FAMILIES, *MORE)
    for source in (one.source, one.tool_use)
    if isinstance(source, LlamaCpp)
}
# Parts of texts that Ratoon reads otherwise: thoughts that llama.cpp leaves in a text; a turn that
# begins with a part of its prompt; elements within a value that may be a text; text after a prompt
# that has closed or opened the thought; tools that gpt-oss was not offered, which are text.
OTHERWISE = (
    *("[THINK]I'm\nthinking[/THINK]Hello", "<|CHATBOT_TOKEN|>", "Union string"),
    *("<think>\n\n</think>", "<|open|>response<|sep|>Hello", "I will execute python"),
)
OF_R1 = ("I'm\nthinking</think>Hello", '<tool_call>\n{"name"')
# Cases with these calls ask for something else than a whole turn.
OTHERS = ("is_partial", "json_schema", "tool_choice")


@cache
def cases() -> list[Case]:
    path = here(LLAMA_CPP) / "vendor" / "llama.cpp" / "tests" / "test-chat.cpp"
    if not path.exists():
        pytest.skip("build/zoo has an earlier selection of llama.cpp's files: remove it")
    return cases_in(path.read_text(encoding="utf-8"))


def asked(case: Case) -> bool:
    """Return whether the case is a whole turn after a plain prompt, with its thoughts apart."""
    continues = case.chain.get("continue_final_message")
    is_new = continues is None or continues.items[-1] == "COMMON_CHAT_CONTINUATION_NONE"
    form = case.chain.get("reasoning_format")
    thinks = form is None or form.items != ["COMMON_REASONING_FORMAT_NONE"]
    expected = case.chain.get("expect")
    thinks = thinks and not (expected and "unparsed" in str(expected.items[0]))
    otherwise = (*OTHERWISE, *(OF_R1 if "R1-Distill" in case.template else ()))
    is_alike = not any(part in case.written for part in otherwise)
    is_whole = "true" not in case.chain["test"].items and not case.chain.keys() & {*OTHERS}
    return case.is_read and is_new and thinks and is_whole and is_alike


def answers(family: Family, directory: Path, found: list[Case]) -> Iterator[tuple[Case, Any]]:
    """Yield each case with its text as Ratoon reads it: whole, and character by character."""
    tokenizer = Tokenizer.load(family.write(directory))
    template = ChatTemplate.load(directory, tokenizer.control)
    assert template is not None
    forms = AnswerForms.of(template, tokenizer, None)
    for case in found:
        tools = [
            {"type": "function", "function": {"name": name, "description": ".", "parameters": one}}
            for name, one in case.tools
        ]
        thinking = case.chain.get("enable_thinking")
        names = () if thinking is None else ("enable_thinking", "thinking")
        prompt = template.render(
            [Message("user", (Text("Hey"),))],
            add_generation_prompt=True,
            tools=tools or None,
            variables={one: thinking.items == ["true"] for one in names if thinking},
        ).text
        form = AnswerForm(tuple(ToolSpec(name, one) for name, one in case.tools))
        make = forms.parser(form, prompt) or TurnReader
        written = case.written
        for end in family.ends:
            written = written.removesuffix(end)
        whole, split = (said_in(read(make(), parts)) for parts in ([written], list(written)))
        assert whole == split, written
        yield case, whole


def differences(case: Case, said: Any) -> list[str]:
    calls = [(name, json.loads(one)) for name, one in said.calls]
    wanted = [(name, json.loads(one or "{}")) for name, one in case.calls or ()]
    apart = "reasoning_format" in case.chain
    found = {
        "calls": case.calls is not None and calls != wanted,
        "content": case.content is not None and case.content.strip() != said.text,
        "reasoning": apart and (case.reasoning or said.reasoning).strip() != said.reasoning,
    }
    return [name for name, differs in found.items() if differs]


@pytest.mark.parametrize("name", sorted(FAMILY))
def test_messages_are_those_that_llama_cpp_expects(name: str, tmp_path: Path) -> None:
    found = [one for one in cases() if one.template == name and asked(one)]
    for case, said in answers(FAMILY[name], tmp_path, found):
        assert not differences(case, said), (case.written, case.calls, case.content, said)


def test_there_are_hundreds_of_cases() -> None:
    assert sum(asked(one) for one in cases() if one.template in FAMILY) > 200
