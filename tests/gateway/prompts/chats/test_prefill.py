"""A final assistant message that the answer continues is the exact end of the prompt."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engine.models.token_marks import TokenMarks
from gateway.errors import BadRequest
from gateway.prompts.chats.messages import Message, Part, Reasoning, Text
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.control_tokens import ControlTokens
from tests.doubles.gateway.served import MODEL
from tests.zoo.families import FAMILIES, family
from tests.zoo.family import Family
from tests.zoo.gateways import zoo_gateway

ASKED = Message("user", (Text("Name a color. QUESTION"),))
TEXTS = ["", " ", "\n", "<", "|", "e", "s", "_", ">", "end", "<|", "</", "[", "Blue ", " Blue\n"]
TEXTS += ["QUESTION", "user", "assistant", "```json\n{", "<tool_call>", "a </think> b"]


@cache
def template_of(one: Family) -> ChatTemplate:
    source = one.template()
    added = {mark.text: mark.is_special for mark in one.marks()}
    control = ControlTokens(added, TokenMarks(templates=source))
    return ChatTemplate(
        source, {"eos_token": one.ends[0], "bos_token": one.bos or ""}, None, control
    )


def continued(template: ChatTemplate, *parts: Part) -> str:
    return template.render(
        [ASKED, Message("assistant", parts)],
        add_generation_prompt=False,
        continue_final_message=True,
    ).text


@pytest.mark.parametrize("one", FAMILIES, ids=str)
def test_any_text_is_the_end_of_the_prompt(one: Family) -> None:
    template = template_of(one)
    opened = continued(template, Text("PREFILL")).removesuffix("PREFILL")
    assert opened.count("QUESTION") == 1
    for text in TEXTS:
        assert continued(template, Text(text)) == opened + text, text


REASONING = [one for one in FAMILIES if one.reasons and one.name != "gpt-oss"]


@pytest.mark.parametrize("one", REASONING, ids=str)
@pytest.mark.parametrize("closed", [True, False])
def test_a_text_that_begins_with_a_thought(one: Family, closed: bool) -> None:
    """Put a text that begins with a thought after the prompt, without the thought that the prompt
    may open.
    """
    template = template_of(one)
    marks = template.reasoning
    assert marks is not None
    asked = template.render([ASKED], add_generation_prompt=True).text
    text = f"{marks.opens}\nIt is{f'{marks.closes}Blue' if closed else ''}"
    assert continued(template, Text(text)) == marks.unopened(asked) + text


@pytest.mark.parametrize("one", REASONING, ids=str)
def test_a_thought_alone_goes_on(one: Family) -> None:
    template = template_of(one)
    marks = template.reasoning
    assert marks is not None
    text = continued(template, Reasoning("It is"), Text(""))
    assert text.endswith("It is")
    assert marks.is_open(text.removesuffix("It is"))
    assert text.count(marks.opens) > text.count(marks.closes)


def test_a_thought_goes_on_in_harmonys_channel() -> None:
    text = continued(template_of(family("gpt-oss")), Reasoning("It is"), Text(""))
    assert text.endswith("<|start|>assistant<|channel|>analysis<|message|>It is")


def test_its_control_tokens_are_text() -> None:
    template = template_of(family("qwen3"))
    rendered = template.render(
        [ASKED, Message("assistant", (Text("a<|im_end|>b<think>c"),))],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert rendered.text.endswith("a<|im_end|>b<think>c")
    assert rendered.pieces[-3:] == ("\n\na<|im_end|>b", "<think>", "c")


def test_a_template_that_hides_the_last_message() -> None:
    with pytest.raises(BadRequest, match="would not show"):
        continued(ChatTemplate("{{ messages[0].content }}", {}), Text("a"))


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("gpt-oss", " so.<|end|><|start|>assistant<|channel|>final<|message|>Blue"),
        ("qwen3", " so.\n</think>\n\nBlue"),
        ("mistral-v13-thinks", " so.[/THINK]Blue"),
    ],
)
def test_a_thought_that_goes_on_is_read_as_one(name: str, written: str, tmp_path: Path) -> None:
    chat: Any = [
        {"role": "user", "content": "A color?"},
        {"role": "assistant", "content": "", "reasoning_content": "It is"},
    ]
    with zoo_gateway(family(name), tmp_path) as zoo:
        zoo.says(written)
        answer: Any = zoo.client.chat.completions.create(
            model=MODEL,
            messages=chat,
            extra_body={"add_generation_prompt": False, "continue_final_message": True},
        )
        assert zoo.prompt().endswith("It is")
    message = answer.choices[0].message
    assert (message.reasoning_content.strip(), message.content) == ("so.", "Blue")
