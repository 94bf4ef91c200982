"""What tells a format in a template; excerpts are what the families' own templates write."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.turn_formats.choose import (
    UnknownToolFormat,
    reasoning_format,
    tool_format,
    tool_format_names,
)
from gateway.turn_formats.families.deepseek import DeepSeekV3Format
from tests.gateway.turn_formats.formats import FORMATS

TEMPLATES = Path(__file__).parents[1] / "templates"
CALLS, _, CALL, _, SEP = DeepSeekV3Format.markers

EXCERPTS = {
    "hermes": r"<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n",
    "llama3_json": """{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}""",
    "mistral": """{{- "[TOOL_CALLS] [" }}""",
    "mistral_v11": """{{- "[TOOL_CALLS]" + name + "[ARGS]" + arguments }}""",
    "deepseek_v3": f"'{CALLS}{CALL}' + tool['type'] + '{SEP}' + name + '\\n```json\\n' + arguments",
    "deepseek_v31": f"'{CALLS}{CALL}'+ tool['function']['name'] + '{SEP}' + arguments",
    "qwen3_coder": r"<tool_call>\n<function=example_function_name>\n<parameter=example_1>\n",
    "harmony": """{{- "<|channel|>commentary json<|message|>" }} " to=functions." + name""",
    "pythonic": "- Use exact format: [func_name1(param1=value1, param2=value2), func_name2(...)]",
    "functiongemma": "{{- '<start_function_call>call:' + function['name'] + '{' -}}",
    "gemma4": "{{- '<|tool_call>call:' + function['name'] + '{' -}}",
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_template_tells_its_format(name: str) -> None:
    found = tool_format(EXCERPTS[name])
    assert found is not None
    assert found.name == name
    others = [FORMATS[other].format() for other in FORMATS if other != name]
    assert not any(other.is_in(EXCERPTS[name]) for other in others)


@pytest.mark.parametrize(
    "template",
    [
        None,
        "",
        "{% for message in messages %}{{ message.content }}{% endfor %}",
        r"<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>",
        "<start_of_turn>model",
    ],
)
def test_other_templates_are_of_none(template: str | None) -> None:
    assert tool_format(template) is None


def test_real_templates() -> None:
    found = tool_format((TEMPLATES / "qwen3.jinja").read_text())
    assert found is not None
    assert found.name == "hermes"
    for name in ("qwen2", "llama3", "mistral"):  # without tools
        assert tool_format((TEMPLATES / f"{name}.jinja").read_text()) is None


def test_a_name_wins_and_an_unknown_one_is_refused_with_the_list() -> None:
    assert set(tool_format_names()) == set(FORMATS)
    for name in tool_format_names():
        named = tool_format(EXCERPTS["hermes"], name)
        assert named is not None
        assert named.name == name
    with pytest.raises(UnknownToolFormat, match="no tool format 'nope'; there are hermes, "):
        tool_format(EXCERPTS["hermes"], "nope")


def test_a_template_tells_the_marks_of_reasoning() -> None:
    found = reasoning_format((TEMPLATES / "qwen3.jinja").read_text())
    assert found is not None
    assert found.closes == "</think>"
    assert reasoning_format((TEMPLATES / "qwen2.jinja").read_text()) is None
    assert reasoning_format(EXCERPTS["harmony"]) is None
    assert reasoning_format(None) is None
