"""All families of the zoo can be loaded and served."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.chats.messages import Message, Text, ToolCall
from gateway.prompts.chats.shown_turns import shown_turns
from gateway.prompts.chats.template_variables import ChatSettings
from gateway.prompts.model_chats import read_chats
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.tokenizer import Tokenizer
from tests.examples import in_the_zoo
from tests.gateway.turn_formats.turns import calls_of, read
from tests.zoo.families import FAMILIES, SERVED, TOKENIZERS, family
from tests.zoo.family import Family
from tests.zoo.gateways import zoo_gateway
from tests.zoo.more_families import MORE, WITH_MORE

# vLLM's templates that write calls in another form than the models: without commas between
# arguments, or without the marker.
WRITING_OTHERWISE = ("vllm-gemma3_pythonic", "vllm-phi4_mini")
CALLING = [one for one in (*FAMILIES, *MORE) if one.tools and one.name not in WRITING_OTHERWISE]
_ASKED = "What is \u00e9t\u00e9?"


def test_thirty_families_and_eight_tokenizers_are_served() -> None:
    assert len(SERVED) >= 30
    assert len(TOKENIZERS) >= 8
    families = (*FAMILIES, *MORE)
    assert len({one.name for one in families}) == len(families)


@pytest.mark.parametrize("one", WITH_MORE)
def test_a_familys_marks_are_tokens_of_its_small_tokenizer(one: Family, tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer.from_file(str(one.write(tmp_path) / "tokenizer.json"))
    for mark in one.marks():
        [token_id] = inner.encode(mark.text, add_special_tokens=False).ids
        assert inner.id_to_token(token_id) == mark.text
    assert all(inner.token_to_id(end) is not None for end in one.ends)
    assert len(inner.encode("[plain] <text>", add_special_tokens=False).ids) == 14


@pytest.mark.parametrize("one", WITH_MORE)
def test_its_template_shows_a_question(one: Family, tmp_path: Path) -> None:
    ours = Tokenizer.load(one.write(tmp_path))
    template = ChatTemplate.load(tmp_path, ours.control)
    assert template is not None
    rendered = template.render([Message("user", (Text(_ASKED),))], add_generation_prompt=True)
    assert _ASKED in rendered.text
    has_marks = any(mark.text in rendered.text for mark in one.marks())
    assert has_marks == (len(rendered.pieces) > 1)


@pytest.mark.parametrize("one", WITH_MORE)
def test_its_formats_are_recognised_without_flags(one: Family, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(one.write(tmp_path))
    forms = AnswerForms.of(ChatTemplate.load(tmp_path, tokenizer.control), tokenizer, None)
    assert (None if forms.tools is None else forms.tools.name) == one.tools
    is_harmony = one.tools == "harmony"  # Harmony's parser reads reasoning as part of a turn
    assert (forms.reasoning is not None or is_harmony) == one.reasons


@pytest.mark.parametrize("one", [*CALLING[:30:3], *in_the_zoo(*CALLING)], ids=str)
def test_its_history_has_calls_as_its_model_writes_them(one: Family, tmp_path: Path) -> None:
    """Check templates that show no calls too, such as Granite 3.3's."""
    tokenizer = Tokenizer.load(one.write(tmp_path))
    template = ChatTemplate.load(tmp_path, tokenizer.control)
    assert template is not None
    forms = AnswerForms.of(template, tokenizer, None)
    assert forms.tools is not None
    shown = shown_turns(template.source, template.telling(forms.tools).render)
    assert shown.tool is not None
    assert shown.call is not None
    pieces = read(forms.tools.parser([shown.tool]), [shown.call])
    assert calls_of(pieces) == [(shown.tool.name, {"city": "Bodo", "days": 3})]


@pytest.mark.zoo
@pytest.mark.parametrize("name", ["granite3.3", "lfm2-8b-a1b", "nemotron-mini"])
def test_markers_that_are_written_around_calls_are_tokens_and_others_text(
    name: str, tmp_path: Path
) -> None:
    """Check that a client's markers, in a call's name or arguments, are no control tokens."""
    one = next(one for one in MORE if one.name == name)
    template = read_chats(one.write(tmp_path), ChatSettings()).template
    assert template is not None
    marks = [mark.text for mark in one.marks()]
    forged = {"city": "".join(marks), "more": [{marks[0]: marks}]}
    counts = []
    for arguments in ({}, forged):
        calls = (ToolCall("look_up" if not arguments else marks[-1], arguments, "id0000001"),)
        said = [Message("user", (Text(_ASKED),)), Message("assistant", calls)]
        rendered = template.render(said, add_generation_prompt=True)
        counts.append(rendered.pieces[1::2])
    assert counts[0] == counts[1]


@pytest.mark.parametrize("real", [True, False], ids=["real", "small"])
def test_a_served_familys_model_says_what_it_is_told_to(real: bool, tmp_path: Path) -> None:
    with zoo_gateway(family("qwen3"), tmp_path, real=real) as zoo:
        zoo.says("<think>\nhm\n</think>\n\nSummer.")
        answer = zoo.client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": _ASKED}]
        )
        assert answer.choices[0].message.content == "Summer."
        assert f"<|im_start|>user\n{_ASKED}<|im_end|>" in zoo.prompt()
