"""What is published is what every chat that begins with it begins with."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.chat_template import ChatTemplate
from gateway.errors import BadRequest
from gateway.prefix_tokens import PrefixTokens
from gateway.state.records import PrefixSource
from gateway.tokenizer import Tokenizer

HANDBOOK = Path(__file__).parents[2] / "handbook" / "model"
SYSTEM = {"role": "system", "content": "You work for Acme. Lunch is at noon."}
FIRST_WORDS = ["When is lunch?", " lunch", "\n\nLunch?", "12", "été", "日本", "", "s", "."]


@pytest.fixture(scope="module")
def handbook() -> PrefixTokens:
    return PrefixTokens(Tokenizer.load(HANDBOOK), ChatTemplate.load(HANDBOOK))


@pytest.mark.parametrize("words", FIRST_WORDS)
@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("answers", [True, False])
def test_a_chats_tokens_begin_with_those_of_its_system_message(
    handbook: PrefixTokens, words: str, role: str, answers: bool
) -> None:
    tokenizer, template = Tokenizer.load(HANDBOOK), ChatTemplate.load(HANDBOOK)
    assert template is not None
    prefix = handbook.of(PrefixSource(messages=[SYSTEM])).tolist()
    chat = [SYSTEM, {"role": role, "content": words}]
    text = template.render(chat, add_generation_prompt=answers)
    whole = tokenizer.encode(text, add_special_tokens=False).tolist()
    assert whole[: len(prefix)] == prefix
    alone = template.render([SYSTEM], add_generation_prompt=False)
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
    strict = PrefixTokens(tokenizer, ChatTemplate(STRICT, {}))
    user = {"role": "user", "content": "hi"}
    tokens = strict.of(PrefixSource(messages=[user]))
    said = tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
    assert said == "<|turn|>user:hi<|turn|>assistant:"
    with pytest.raises(BadRequest, match="take turns"):
        strict.of(PrefixSource(messages=[user, user]))


def test_what_the_model_cannot_say_is_refused(tiny_model: Path) -> None:
    bare = PrefixTokens(Tokenizer.load(tiny_model), None)
    with pytest.raises(BadRequest, match="no chat template"):
        bare.of(PrefixSource(messages=[SYSTEM]))
    assert len(bare.of(PrefixSource(text="hello"))) == 6
