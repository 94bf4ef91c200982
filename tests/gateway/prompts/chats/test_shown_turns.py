"""Formats of calls and thoughts are recognised from the turns that templates render, including the
zoo's templates.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.prompts.answer_forms import AnswerForms
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.tokenizer import Tokenizer
from gateway.turn_formats.choose import reasoning_format, tool_format
from tests.zoo.families import FAMILIES
from tests.zoo.family import Family
from tests.zoo.templates import Trl

# Templates from trl whose models are not served: the format of calls, and the end marker of
# thoughts.
OTHERS: dict[str, tuple[str | None, str | None]] = {
    "cohere2": (None, None),
    "diffusion_gemma": ("gemma4", "<channel|>"),
    "lfm2": ("lfm2", None),
    "lfm2_2_5": ("lfm2", "</think>"),
    "muse_glimmer": ("muse", "<|eom|><|start|>assistant"),
    "nemotron_3_nano": ("qwen3_coder", "</think>"),
    "nemotron_3_5_lightning": ("qwen3_coder", "</think>"),
    "qwen2_5_vl": (None, None),
    "smolvlm": (None, None),
}


def forms_of(one: Family, directory: Path) -> AnswerForms:
    tokenizer = Tokenizer.load(one.write(directory))
    return AnswerForms.of(ChatTemplate.load(directory, tokenizer.control), tokenizer, None)


@pytest.mark.parametrize("one", FAMILIES, ids=str)
def test_a_published_template_tells_its_formats(one: Family, tmp_path: Path) -> None:
    forms = forms_of(one, tmp_path)
    assert (forms.tools.name if forms.tools else None) == one.tools
    reads_reasoning = forms.tools is not None and forms.tools.reads_reasoning
    assert (forms.reasoning is not None or reads_reasoning) == one.reasons


@pytest.mark.parametrize("name", OTHERS)
def test_other_templates_are_taken_for_none_that_they_are_not(name: str) -> None:
    tokens = {"bos_token": "<bos>", "eos_token": "<eos>"}
    shown = ChatTemplate(Trl(name).read(), tokens).shown
    tools, reasoning = tool_format(shown), reasoning_format(shown)
    assert (tools and tools.name, reasoning and reasoning.closes) == OTHERS[name]


def test_a_turn_begins_with_a_whole_mark() -> None:
    template = ChatTemplate(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
        "{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|><think></think>{% endif %}",
        {},
    )
    call = template.shown.call
    assert call is not None
    assert call.startswith('<tool_call>{"name": "look_up_weather"')


def test_what_a_template_does_not_show_is_none() -> None:
    for source in ("{{ messages[0].content }}", "{{ raise_exception('never') }}"):
        shown = ChatTemplate(source, {}).shown
        assert (shown.call, shown.thought, shown.source) == (None, None, source)
