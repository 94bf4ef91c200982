"""A published prefix is the beginning of every chat that begins with its messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import BadRequest
from gateway.prompts.chats.messages import stored_message
from gateway.prompts.prefix_tokens import PrefixTokens
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.tokenizer import Tokenizer
from gateway.state.records import PrefixSource

HANDBOOK = Path(__file__).parents[3] / "handbook" / "model"
SYSTEM = {"role": "system", "content": "You work for Acme. Lunch is at noon."}
FIRST_WORDS = ["When is lunch?", " lunch", "\n\nLunch?", "12", "été", "日本", "", "s", "."]


@pytest.fixture(scope="module")
def handbook() -> PrefixTokens:
    return PrefixTokens(
        Tokenizer.load(HANDBOOK), ChatTemplate.load(HANDBOOK, Tokenizer.load(HANDBOOK).control)
    )


@pytest.mark.parametrize("words", FIRST_WORDS)
@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("answers", [True, False])
def test_a_chats_tokens_begin_with_those_of_its_system_message(
    handbook: PrefixTokens, words: str, role: str, answers: bool
) -> None:
    tokenizer, template = (
        Tokenizer.load(HANDBOOK),
        ChatTemplate.load(HANDBOOK, Tokenizer.load(HANDBOOK).control),
    )
    assert template is not None
    prefix = handbook.of(PrefixSource(messages=[SYSTEM])).tolist()
    chat = [stored_message(form) for form in (SYSTEM, {"role": role, "content": words})]
    text = template.render(chat, add_generation_prompt=answers)
    whole = tokenizer.encode(text, add_special_tokens=False).tolist()
    assert whole[: len(prefix)] == prefix
    alone = template.render([stored_message(SYSTEM)], add_generation_prompt=False)
    assert len(prefix) >= len(tokenizer.encode(alone, add_special_tokens=False)) - 1


@pytest.mark.parametrize("more", [*FIRST_WORDS, "ing", "s and more"])
def test_a_texts_tokens_begin_with_those_of_its_beginning(
    handbook: PrefixTokens, more: str
) -> None:
    tokenizer, text = Tokenizer.load(HANDBOOK), "You work for Acme. Lunch is at noo"
    prefix = handbook.of(PrefixSource(text=text)).tolist()
    whole = tokenizer.encode(text + more, add_special_tokens=True).tolist()
    assert whole[: len(prefix)] == prefix
    assert len(prefix) > 5


STRICT = """\
{%- for message in messages %}
{%- if (message.role == "user") != (loop.index0 % 2 == 0) %}
{{- raise_exception("user and assistant take turns") }}{% endif %}
{{- "<|turn|>" + message.role + ":" + message.content }}
{%- endfor %}"""


def test_the_template_says_who_may_speak_next(tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    strict = PrefixTokens(tokenizer, ChatTemplate(STRICT, {}, control=tokenizer.control))
    user = {"role": "user", "content": "hi"}
    tokens = strict.of(PrefixSource(messages=[user]))
    said = tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
    # the turn has no end marker, since the user may continue the text
    assert said == "<|turn|>user:hi"
    refuses = "{{ raise_exception('nobody may') }}"
    nobody = PrefixTokens(tokenizer, ChatTemplate(refuses, {}, control=tokenizer.control))
    with pytest.raises(BadRequest, match="nobody may"):
        nobody.of(PrefixSource(messages=[user]))


TOOLS = [{"type": "function", "function": {"name": "clock"}}]
BEFORE = """\
{%- if tools %}{{ "<|turn|>tools:" + (tools | tojson) }}{% endif %}
{%- for message in messages %}
{{- "<|turn|>" + message.role + ":" + message.content }}
{%- endfor %}"""
BEHIND_SYSTEM = """\
{%- set said = messages[0].content if messages[0].role == "system" else "Be kind." %}
{{- "<|turn|>system:" + said }}
{%- if tools %}{{ "<|turn|>tools:" + (tools | tojson) }}{% endif %}
{%- for message in messages if message.role != "system" %}
{{- "<|turn|>" + message.role + ":" + message.content }}
{%- else %}{{ raise_exception("somebody must ask") }}
{%- endfor %}"""
SHOWN = '<|turn|>tools:[{"type": "function", "function": {"name": "clock"}}]<|turn|>'


@pytest.mark.parametrize(
    ("source", "prefix", "said"),
    [
        (BEFORE, PrefixSource(tools=TOOLS), SHOWN),
        (
            BEFORE,
            PrefixSource(tools=TOOLS, messages=[{"role": "system", "content": "hi"}]),
            SHOWN + "system:hi<|turn|>",
        ),
        (
            BEHIND_SYSTEM,
            PrefixSource(tools=TOOLS, messages=[{"role": "system", "content": "hi"}]),
            "<|turn|>system:hi" + SHOWN,
        ),
        # A conversation with these tools may begin with any system message.
        (BEHIND_SYSTEM, PrefixSource(tools=TOOLS), "<|turn|>system:"),
        (BEHIND_SYSTEM, PrefixSource(messages=[{"role": "system", "content": "hi"}]), None),
    ],
)
def test_tools_are_published_as_the_template_shows_them(
    tiny_model: Path, source: str, prefix: PrefixSource, said: str | None
) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    template = ChatTemplate(source, {}, control=tokenizer.control)
    tokens = PrefixTokens(tokenizer, template).of(prefix).tolist()
    shown = tokenizer.decode(tokens, skip_special_tokens=False)
    assert shown == ("<|turn|>system:hi<|turn|>" if said is None else said)
    user = {"role": "user", "content": "a"}
    # If a template allows one system message, a second one is appended to the first.
    goes_on = [[SYSTEM, user]] if source == BEFORE or not prefix.messages else []
    for chat in ([user], *goes_on):
        whole = template.render(
            [stored_message(form) for form in [*(prefix.messages or []), *chat]],
            add_generation_prompt=False,
            tools=prefix.tools,
        )
        assert tokenizer.encode(whole, add_special_tokens=False).tolist()[: len(tokens)] == tokens


NO_TOOLS = """
{%- for message in messages %}
{{- "<|turn|>" + message.role + ":" + message.content }}
{%- endfor %}"""


def test_a_model_that_shows_no_tools_shares_nothing_by_them(
    tiny_model: Path, handbook: PrefixTokens
) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    blind = PrefixTokens(tokenizer, ChatTemplate(NO_TOOLS, {}, control=tokenizer.control))
    plain, tools = PrefixSource(messages=[SYSTEM]), PrefixSource(messages=[SYSTEM], tools=TOOLS)
    assert blind.of(tools).tolist() == blind.of(plain).tolist()
    assert len(blind.of(PrefixSource(tools=TOOLS))) == 1  # all chats have this beginning
    assert handbook.of(tools).tolist() != handbook.of(plain).tolist(), "the control"


def test_what_the_model_cannot_say_is_refused(tiny_model: Path) -> None:
    bare = PrefixTokens(Tokenizer.load(tiny_model), None)
    with pytest.raises(BadRequest, match="no chat template"):
        bare.of(PrefixSource(messages=[SYSTEM]))
    assert len(bare.of(PrefixSource(text="hello"))) == 6
