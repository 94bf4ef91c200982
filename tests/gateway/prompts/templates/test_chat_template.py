from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from gateway.errors import BadRequest
from gateway.prompts.chats.forms import Tool
from gateway.prompts.chats.messages import stored_message
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.templates.compiled import TemplateBroken
from gateway.prompts.tokens.control_tokens import ControlTokens
from tests.doubles.engine.tiny_model import write_tiny_model

SENT = [
    {"role": "system", "content": "  Be <b>brief</b> & kind.  "},
    {"role": "user", "content": "Grüße 😀\n{{ 7 * 7 }}"},
    {"role": "assistant", "content": "Hello\n"},
    {"role": "user", "content": 'say "no"'},
]
CHAT = [stored_message(form) for form in SENT]
CHATML = """\
{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
    {% endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {{- message['content'] | trim + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{% endif %}
"""
WITH_EVERYTHING = """\
{{ bos_token }}{% set ns = namespace(found=false) %}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}{% set ns.found = true %}{% continue %}{%- endif -%}
[{{ message.role | upper }}] {{ message.content | tojson }}
{% generation %}{{ loop.index0 }}{% endgeneration %}
{%- endfor %}
{{ {'a': [1, 2.5, none, true], 'ü': '<&>'} | tojson(indent=2) }} {{ ns.found }} {{ thinking }}
{%- if tools is not none %}tools{% endif %}{{ eos_token }}"""


@pytest.mark.parametrize("source", [CHATML, WITH_EVERYTHING], ids=["chatml", "everything"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_as_transformers_renders_it(source: str, add_generation_prompt: bool) -> None:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    ours = ChatTemplate(source, tokens).render(
        CHAT, add_generation_prompt=add_generation_prompt, variables={"thinking": True}
    )
    (theirs,), _ = render_jinja_template(
        [SENT],
        chat_template=source,
        add_generation_prompt=add_generation_prompt,
        thinking=True,
        **tokens,
    )
    assert ours.text == theirs


@pytest.mark.parametrize("content", ["The answer", "The answer ", " The answer\n"])
@pytest.mark.parametrize("source", [CHATML, "{% for m in messages %}[{{ m.content }}]{% endfor %}"])
def test_a_last_message_that_goes_on(source: str, content: str) -> None:
    chat = [*CHAT, stored_message({"role": "assistant", "content": content})]
    text = (
        ChatTemplate(source, {})
        .render(chat, add_generation_prompt=False, continue_final_message=True)
        .text
    )
    assert text.endswith(("The answer", content))
    assert "<|im_end|>" not in text[text.rindex("The answer") :]


TOOLS: list[Tool] = [
    {"type": "function", "function": {"name": "zone", "parameters": {"b": 1.0, "a": "<é>"}}},
    {"function": {"name": "clock"}, "type": "function"},
]
WITH_TOOLS = """\
{% if tools %}{{ tools | length }} tools:
{% for tool in tools %}{{ tool | tojson }} {{ tool.function.name }}
{% endfor %}{% endif %}
{%- for message in messages %}[{{ message.content }}]{% endfor %}"""


@pytest.mark.parametrize("source", [WITH_TOOLS, WITH_EVERYTHING])
def test_tools_as_transformers_renders_them(source: str) -> None:
    ours = ChatTemplate(source, {}).render(CHAT, add_generation_prompt=True, tools=TOOLS)
    (theirs,), _ = render_jinja_template(
        [SENT],
        chat_template=source,
        add_generation_prompt=True,
        tools=TOOLS,
    )
    assert ours.text == theirs
    assert "tools" in ours.text
    no_tools: list[Tool] = []
    for none in (None, no_tools):
        without = ChatTemplate(source, {}).render(CHAT, add_generation_prompt=True, tools=none)
        assert "tools" not in without.text


def test_a_model_may_have_a_template_for_chats_with_tools(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path, template=None)
    named = [
        {"name": "default", "template": "{{ bos_token }}plain"},
        {"name": "tool_use", "template": "{{ bos_token }}{{ tools | length }} tools"},
        {"name": "broken"},
    ]
    config = {"chat_template": named, "bos_token": "<s>"}
    (directory / "tokenizer_config.json").write_bytes(msgspec.json.encode(config))
    template = ChatTemplate.load(directory, ControlTokens())
    assert template is not None
    assert template.render(CHAT, add_generation_prompt=True).text == "<s>plain"
    assert template.render(CHAT, add_generation_prompt=True, tools=TOOLS).text == "<s>2 tools"
    with pytest.raises(TemplateBroken):
        ChatTemplate("", {}, "{% for %}")


def test_a_template_may_refuse() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(BadRequest, match="roles must alternate") as refused:
        template.render(CHAT, add_generation_prompt=True)
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[99].content.x }}",
        "{{ 1 / 0 }}",
        "{% for i in range(1000000) %}{% endfor %}",
        "{{ self.__init__.__globals__ }}",
        "{{ missing() }}",
    ],
)
def test_what_a_template_may_not_do_is_an_error_without_the_prompt(source: str) -> None:
    with pytest.raises(BadRequest) as refused:
        ChatTemplate(source, {}).render(CHAT, add_generation_prompt=True)
    assert "brief" not in refused.value.message


def test_a_template_that_does_not_compile_is_found_at_the_start() -> None:
    with pytest.raises(TemplateBroken):
        ChatTemplate("{% for %}", {})


def test_variables_cannot_hide_what_every_template_is_given() -> None:
    variables: dict[str, Any] = {"messages": "x", "bos_token": "x", "own": "y"}
    text = ChatTemplate("{{ messages | length }}{{ bos_token }}{{ own }}", {"bos_token": "<s>"})
    rendered = text.render(CHAT, add_generation_prompt=True, variables=variables)
    assert rendered.text == "4<s>y"


def test_where_a_directory_keeps_its_template(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path, template=None)
    assert ChatTemplate.load(directory, ControlTokens()) is None
    config = directory / "tokenizer_config.json"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    config.write_bytes(msgspec.json.encode({"chat_template": named}))
    assert _rendered(directory) == "d"
    config.write_bytes(msgspec.json.encode({"chat_template": "{{ bos_token }}", "bos_token": "B"}))
    assert _rendered(directory) == "B"
    (directory / "chat_template.jinja").write_text("{{ bos_token }}!")
    assert _rendered(directory) == "B!"


def _rendered(directory: Path) -> str:
    template = ChatTemplate.load(directory, ControlTokens())
    assert template is not None
    return template.render(CHAT, add_generation_prompt=False).text


@pytest.mark.parametrize("leading", [1, 2, 3])
def test_several_leading_system_messages_where_the_second_is_taken_for_a_question(
    leading: int,
) -> None:
    """Detect a template that takes the second system message for a question.

    Unsloth's template for Gemma joins the first two messages, whatever their roles.
    """
    source = (
        "{% if messages[0].role == 'system' %}"
        "[{{ messages[0].content }} {{ messages[1].content }}]{% set messages = messages[2:] %}"
        "{% endif %}{% for message in messages %}"
        "{% if message.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "[{{ message.content }}]{% endfor %}"
    )
    system = [{"role": "system", "content": f"rule {number}"} for number in range(leading)]
    chat = [stored_message(form) for form in (*system, {"role": "user", "content": "go"})]
    text = ChatTemplate(source, {}).render(chat, add_generation_prompt=True).text
    assert text.endswith(" go]")
    assert all(text.count(f"rule {number}") == 1 for number in range(leading))
