"""Required calls, strict tools and schemas under grammars with control tokens, in each format of
calls.

The engine walks at random through the gateway's grammar, over the family's tokens. So whatever a
constrained model writes, the answer has the requested form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from engine.grammars.vocabulary import read_vocabulary
from tests.zoo.families import SERVED, family
from tests.zoo.family import Family
from tests.zoo.gateways import ZooGateway, welcome_of, zoo_gateway
from tests.zoo.grammars.walks import Walker
from tests.zoo.more_families import MORE
from tests.zoo.templates import Trl

UNIT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["c", "f"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 40},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$", "maxLength": 6},
        "exact": {"type": "boolean"},
        "date": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    },
    "required": ["unit", "days", "code"],
    "additionalProperties": False,
}
OTHER: dict[str, Any] = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}
OTHER |= {"$defs": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"]}
OTHER |= {"additionalProperties": False}
SCHEMAS = {"get_unit": UNIT, "get_number": OTHER}
PATTERN = 'SELECT "[a-z]{1,5}"\\n;|<[0-9]{2}>|\\\\[^a-z]{3}!'
QUERY = {
    "type": "custom",
    "name": "query",
    "format": {"type": "grammar", "syntax": "regex", "definition": PATTERN},
}
LARK = r"""
start: day (LF day)~1..2 "\\"?
day: "\"" YEAR "-" ("0" "1".."9" | "1" /[0-2]/) "</a>\""
YEAR: ("19" | "20") DIGIT~2
%import common (LF, DIGIT)
"""
_DAY = r'"(?:19|20)[0-9]{2}-(?:0[1-9]|1[0-2])</a>"'
OF_LARK = rf"{_DAY}(?:\n{_DAY}){{1,2}}\\?"
ASKED: Any = [{"role": "user", "content": "Which unit?"}]


@dataclass(frozen=True)
class Held:
    """A family, and the format in which its constrained calls are written."""

    family: Family
    tool_format: str | None = None  # the format's name in --tool-format

    def __str__(self) -> str:
        return self.tool_format or str(self.family.tools)


_V11 = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]")
_FUNCTION = ("<start_function_call>", "<end_function_call>", "<escape>")
FORMATS = (
    Held(family("qwen3")),
    Held(family("qwen3-coder")),
    Held(family("llama3.1")),
    Held(family("llama3.2"), "pythonic"),
    Held(family("mistral-nemo")),
    Held(replace(family("mistral-nemo"), special=_V11), "mistral_v11"),
    Held(family("r1-distill-llama")),
    Held(family("deepseek-v3.1")),
    Held(family("gpt-oss")),
    Held(family("gemma4")),
    Held(family("glm4.5")),
    Held(family("lfm2")),
    # Uses a template that shows tools; Gemma 3's own template does not.
    Held(replace(family("gemma3"), special=_FUNCTION, source=Trl("qwen2_5")), "functiongemma"),
)
_SHOWN = {held.family.name for held in FORMATS}
MORE_FORMATS = tuple(
    Held(next(one for one in MORE if one.tools == name))
    for name in (
        *("cohere", "glm47", "kimi_k2", "minimax_m2", "seed_oss", "apertus", "deepseek_v32"),
        *("deepseek_v4", "gigachat3", "gigachat31", "granite", "hy3", "kimi_k3", "minicpm5"),
        *("minimax_m1", "minimax_m3", "nemotron_nano2", "solar_open"),
    )
)
SHIPPED = (
    *(*FORMATS, *MORE_FORMATS),
    *(Held(one) for one in SERVED if one.tools and one.name not in _SHOWN),
)
QUICK = FORMATS[0]  # tested with the published tokenizer, and in all dialects


@contextmanager
def walking(held: Held, directory: Path, *, real: bool) -> Iterator[ZooGateway]:
    settings = {"tool_format": held.tool_format} if held.tool_format else {}
    with zoo_gateway(held.family, directory, real=real, **settings) as zoo:
        marks = [zoo.inner.token_to_id(mark.text) for mark in held.family.marks()]
        known = [mark for mark in marks if mark is not None]
        welcome = welcome_of(held.family, zoo.inner)
        size, ends = welcome.vocab_size, welcome.eos_token_ids
        zoo.engine.script = Walker(read_vocabulary(directory / "model", size, ends), known)
        yield zoo


def tools(*names: str, strict: bool = False) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {"name": name, "parameters": SCHEMAS[name], "description": "d"}
            | ({"strict": True} if strict else {}),
        }
        for name in names
    ]


BOTH = tools(*SCHEMAS)
SCHEMA = {"type": "json_schema", "json_schema": {"name": "u", "schema": UNIT}}
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "regex", "definition": PATTERN}}
IN_LARK = {"type": "grammar", "grammar": {"syntax": "lark", "definition": LARK}}
CALLS: dict[str, dict[str, Any]] = {
    "of Lark": {
        "tools": [{"type": "custom", "custom": {"name": "days", "format": IN_LARK}}],
        "tool_choice": "required",
    },
    "of text": {
        "tools": [{"type": "custom", "custom": {"name": "query", "format": GRAMMAR}}],
        "tool_choice": "required",
    },
    "required": {"tools": BOTH, "tool_choice": "required"},
    "one": {"tools": BOTH, "tool_choice": "required", "parallel_tool_calls": False},
    "strict and required": {"tools": tools("get_unit", strict=True), "tool_choice": "required"},
    "named": {
        "tools": BOTH,
        "tool_choice": {"type": "function", "function": {"name": "get_number"}},
    },
}
OTHERS: dict[str, dict[str, Any]] = {
    "strict": {"tools": tools(*SCHEMAS, strict=True)},
    "a schema": {"response_format": SCHEMA},
    "a schema without reasoning": {
        "response_format": SCHEMA,
        "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
    },
    "an object": {"response_format": {"type": "json_object"}, "max_tokens": 60},
    "a schema and tools": {"response_format": SCHEMA, "tools": tools(*SCHEMAS, strict=True)},
    "a pattern": {"extra_body": {"guided_regex": "[0-9]{3}"}},
    "a choice": {"extra_body": {"guided_choice": ["yes", "no"]}},
    "a grammar": {"extra_body": {"guided_grammar": 'root ::= "a" [0-9] "b"'}},
}


def asked(zoo: ZooGateway, **more: Any) -> Any:
    [choice] = zoo.client.chat.completions.create(
        model="tiny", messages=ASKED, **{"max_tokens": 4000, **more}
    ).choices
    return choice


def check_calls(choice: Any, least: int) -> list[str]:
    """Check that each call is valid under its tool's schema; return the tools' names."""
    calls = choice.message.tool_calls or []
    assert len(calls) >= least, choice
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    return [call.function.name for call in calls]


def check_text(choice: Any) -> None:
    jsonschema.validate(json.loads(choice.message.content), UNIT)


def check_texts(inputs: list[str], pattern: str = PATTERN) -> None:
    """Check each input of a free-text tool against the tool's regular expression."""
    assert inputs
    for one in inputs:
        assert re.fullmatch(pattern, one), one


def inputs_of(choice: Any) -> list[str]:
    return [one.custom.input for one in choice.message.tool_calls]


def check_all(zoo: ZooGateway) -> None:
    """Check every form of answer that a chat can request."""
    assert len(check_calls(asked(zoo, **CALLS["one"]), 1)) == 1
    assert set(check_calls(asked(zoo, **CALLS["named"]), 1)) == {"get_number"}
    check_calls(asked(zoo, **CALLS["required"]), 1)
    check_calls(asked(zoo, **CALLS["strict and required"]), 1)
    check_calls(asked(zoo, **OTHERS["strict"]), 0)
    check_texts(inputs_of(asked(zoo, **CALLS["of text"])))
    check_texts(inputs_of(asked(zoo, **CALLS["of Lark"])), OF_LARK)
    both = asked(zoo, **OTHERS["a schema and tools"])
    check_calls(both, 1) if both.message.tool_calls else check_text(both)
    check_text(asked(zoo, **OTHERS["a schema"]))
    check_text(asked(zoo, **OTHERS["a schema without reasoning"]))
    assert asked(zoo, **OTHERS["an object"]).message.content.startswith("{")
    assert asked(zoo, **OTHERS["a pattern"]).message.content.isdigit()
    assert asked(zoo, **OTHERS["a choice"]).message.content in ("yes", "no")
    assert asked(zoo, **OTHERS["a grammar"]).message.content[::2] == "ab"


def check_other_dialects(zoo: ZooGateway) -> None:
    """Check calls and schemas in the Responses and Messages APIs."""
    client: Any = zoo.client
    messages: Any = zoo.anthropic.messages
    items = client.responses.create(
        model="tiny",
        input="Which unit?",
        tools=[{"type": "function", **BOTH[0]["function"], "strict": True}],
        tool_choice="required",
    ).output
    called = [json.loads(one.arguments) for one in items if one.type == "function_call"]
    assert called
    text = client.responses.create(
        model="tiny",
        input="Which unit?",
        text={"format": {"type": "json_schema", "name": "u", "schema": UNIT, "strict": True}},
    ).output_text
    used = messages.create(
        model="tiny",
        max_tokens=4000,
        messages=[{"role": "user", "content": "Which unit?"}],
        tools=[{"name": "get_unit", "input_schema": UNIT, "description": "d"}],
        tool_choice={"type": "any"},
    ).content
    called += [one.input for one in used if one.type == "tool_use"]
    for value in [*called, json.loads(text)]:
        jsonschema.validate(value, UNIT)
    items = client.responses.create(
        model="tiny", input="Which unit?", tools=[QUERY], tool_choice="required"
    ).output
    check_texts([one.input for one in items if one.type == "custom_tool_call"])


@pytest.mark.parametrize("held", FORMATS, ids=str)
def test_marks_of_each_format(held: Held, tmp_path: Path) -> None:
    with walking(held, tmp_path, real=False) as zoo:
        check_all(zoo)


def test_other_dialects_hold_answers_too(tmp_path: Path) -> None:
    """Check Responses and Messages with one format, and a small tokenizer.

    `test_held_families` uses published vocabularies.
    """
    with walking(QUICK, tmp_path, real=False) as zoo:
        check_other_dialects(zoo)


@pytest.mark.zoo
@pytest.mark.parametrize("held", SHIPPED, ids=lambda held: f"{held.family}, {held}")
def test_marks_of_all_shipped_tokenizers(held: Held, tmp_path: Path) -> None:
    with walking(held, tmp_path, real=True) as zoo:
        for _ in range(4):
            check_all(zoo)
            check_other_dialects(zoo)


def test_what_cannot_be_held_is_refused_as_ever(tmp_path: Path) -> None:
    with walking(QUICK, tmp_path, real=False) as zoo:
        tool = tools("get_unit", strict=True)
        tool[0]["function"]["parameters"] = {**UNIT, "not": {}}
        with pytest.raises(openai.BadRequestError, match=r"tool get_unit: .*not"):
            asked(zoo, tools=tool, tool_choice="required")
