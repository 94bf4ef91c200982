"""The limits that are reported for a template really apply to its chats."""

from __future__ import annotations

from functools import cache

import pytest

from gateway.prompts.templates.fitted import FittedTemplate
from gateway.prompts.templates.limits import limits_of
from gateway.prompts.templates.probing import chat_of
from gateway.prompts.templates.shapes import ONE_TOOL
from gateway.turn_formats.families.named.deepseek import DeepSeekV3Format
from gateway.turn_formats.families.objects.object_lists import GraniteFormat
from tests.zoo.families import family
from tests.zoo.templates import LlamaCpp, Template, Trl

TAKES_ALL = (
    "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content or '' }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.id }}{{ c.function }}{% endfor %}"
    "{{ m.tool_call_id or '' }}{% endfor %}{% if tools %}{{ tools }}{% endif %}"
)


@cache
def told(name: str) -> dict[str, str]:
    one = family(name)
    tokens = {"eos_token": one.ends[0], "bos_token": one.bos or ""}
    limits = limits_of(FittedTemplate(one.template(), tokens), {})
    return {limit.cannot: limit.instead for limit in limits}


def test_of_a_template_that_takes_any_chat_nothing_is_told() -> None:
    assert limits_of(FittedTemplate(TAKES_ALL, {}), {}) == []


@pytest.mark.parametrize(
    ("name", "other", "cannot", "instead"),
    [
        ("mistral-nemo", "qwen3", "user's turns in a row", "joined"),
        (
            "mistral-nemo",
            "gemma3",
            "system messages at the beginning",
            "put before the text of the user's first turn",
        ),
        ("gemma3", "qwen3", "system messages inside the conversation", "rendered as a user's turn"),
        ("gemma3", "llama3.1", "calls", "shown as text of the assistant's turn"),
        (
            "gemma3",
            "llama3.1",
            "tools",
            "refused, unless none may be called; --chat-template names a template",
        ),
        ("llama3.1", "qwen3", "several calls in a turn", "shown as turns of one call each"),
        ("llama3.1", "qwen3", "a text beside calls", "shown as a turn before them"),
        ("llama3.1", "qwen3", "thinking that is sent back", "dropped"),
        ("gpt-oss", "llama3.1", "thinking of earlier turns", "dropped"),
        ("gpt-oss", "qwen3", "tools without a description", "given an empty one"),
        (
            "mistral-nemo",
            "qwen3",
            "ids of calls but nine letters or digits",
            "replaced by such",
        ),
    ],
)
def test_published_templates(name: str, other: str, cannot: str, instead: str) -> None:
    """Report the limit of a template, but not for another family's template."""
    assert told(name)[cannot] == instead
    assert cannot not in told(other)


def test_tools_that_are_told_of_otherwise() -> None:
    plain = FittedTemplate(family("r1-distill-qwen").template(), {})
    for tells, instead in (
        (GraniteFormat(), "refused"),
        (DeepSeekV3Format(), "shown in a message"),
    ):
        found = {one.cannot: one.instead for one in limits_of(plain.telling(tells), {})}
        assert found["tools"].startswith(instead)


def more(name: str, *variables: dict[str, bool]) -> object:
    return pytest.param(LlamaCpp(name), *variables, marks=pytest.mark.zoo)


@pytest.mark.parametrize(
    ("source", "keeps"),
    [
        (Trl("qwen3_6"), {"preserve_thinking": True}),
        (Trl("lfm2_2_5"), {"preserve_thinking": True}),
        (Trl("nemotron_3_nano"), {"truncate_history_thinking": False}),
        (Trl("nemotron_3_5_lightning"), {"truncate_history_thinking": False}),
        more("GLM-4.7-Flash", {"clear_thinking": False}),
        more("deepseek-ai-DeepSeek-V4", {"thinking": True, "drop_thinking": False}),
    ],
    ids=str,
)
def test_a_variable_that_keeps_thoughts(source: Template, keeps: dict[str, bool]) -> None:
    """Set the variables of docs/how-to/call-tools.md that keep thoughts."""
    template = FittedTemplate(source.read(), {})
    assert template.shows_thoughts("u ar u", keeps)
    assert not template.shows_thoughts("u ar u", {})
    for name in keeps:
        assert not template.shows_thoughts("u ar u", {**keeps, name: not keeps[name]})


@pytest.mark.parametrize(
    "source",
    [
        *(Trl("qwen3_8"), Trl("muse_glimmer")),
        *map(more, ("ByteDance-Seed-OSS", "Kimi-K3", "MiniMax-M3", "poolside-Laguna-S-2.1")),
        more("mistralai-Ministral-3-14B-Reasoning-2512"),
    ],
    ids=str,
)
def test_a_template_that_keeps_thoughts_by_itself(source: Template) -> None:
    assert FittedTemplate(source.read(), {}).shows_thoughts("u ar u", {})


_CHAT = """\
{{- tools | tojson if tools }}
{%- for m in messages %}[{{ m.role }}]{{ m.reasoning_content or "" }}{{ m.content }}
{%- for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}ENDS{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""


@pytest.mark.parametrize(
    ("ends", "keeps"),
    [
        ("{{ eos_token }}", True),
        ("{{ '\\n' if not loop.last }}{{ eos_token }}", False),
        ("{{ eos_token if loop.last or m.role != 'tool' }}", False),
        ("{{ eos_token }}{{ '\\n' if not loop.last }}", False),
    ],
)
def test_a_template_that_writes_earlier_messages_anew(ends: str, *, keeps: bool) -> None:
    template = FittedTemplate(_CHAT.replace("ENDS", ends), {"eos_token": "<e>"})
    assert all(template.shows_thoughts(one, {}) for one in ("u ar u", "u arc t"))
    assert template.keeps_thoughts({}) == keeps


def test_tools_that_stand_beside_a_system_message_alone() -> None:
    source = """\
{% for m in messages %}[{{ m.role }}]{{ m.content }}
{%- if m.role == "system" and tools %}{{ tools | tojson }}{% endif %}
{%- for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}
{%- endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"""
    template = FittedTemplate(source, {})
    assert template.shows_tools
    led, alone = (
        template.render(template.fitted(chat_of(one)), ONE_TOOL, {}, asks=True)
        for one in ("s u", "u")
    )
    assert led.count(ONE_TOOL[0]["function"]["name"]) == 1
    assert alone.startswith("[system][{")
    assert "[system]" not in template.render(template.fitted(chat_of("u")), None, {}, asks=True)
    told = {one.cannot: one.instead for one in limits_of(template, {})}
    assert told["tools without a system message"] == "given an empty one"


def test_parameters_without_a_description() -> None:
    source = """\
{% for tool in tools or [] %}{{ tool.function.name }}
{%- for name, one in tool.function.parameters.properties | items %}
{{- name + one.description + (one["items"] | tojson if one.type == "array" else "") }}
{%- endfor %}{% endfor %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"""
    template = FittedTemplate(source, {})
    named = {"many": {"type": "array"}, "word": {"type": "string", "description": "W"}}
    parameters = {"type": "object", "properties": named}
    tool = {"type": "function", "function": {"name": "look", "parameters": parameters}}
    shown = template.render(template.fitted(chat_of("u")), [tool], {}, asks=True)
    assert shown.startswith("lookmany{}wordW[user]")
    told = {one.cannot: one.instead for one in limits_of(template, {})}
    assert told["parameters without a description, or with the type null"].startswith("given")


def test_a_variable_that_the_template_does_not_know() -> None:
    template = FittedTemplate(family("r1-distill-qwen").template(), {})
    told = {one.cannot: one.instead for one in limits_of(template, {"preserve_thinking": True})}
    assert told["thinking of earlier turns"] == "kept where the turn was generated here"
    assert "thinking that is sent back" in {one.cannot for one in limits_of(template, {})}
