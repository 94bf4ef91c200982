"""Answer formats (schemas, enumerations, thoughts), and refused fields."""

from __future__ import annotations

import enum
import json
from typing import Any

import httpx
import pydantic
import pytest
from google import genai

from gateway.dialects.gemini.chats.schemas import closed, json_schema
from gateway.errors import BadRequest
from tests.doubles.engine.fake_engine import FakeEngine, saying
from tests.gateway.dialects.gemini.asking import (
    ask,
    error_of,
    param_of,
    parts_of,
    post,
    shown,
    usage_of,
)


class Person(pydantic.BaseModel):
    name: str
    age: int | None


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


def form_of(engine: FakeEngine) -> str:
    """Return the grammar of the last answer without its optional thoughts."""
    grammar = engine.requests[-1].sampling.grammar
    assert grammar is not None
    return grammar.text.partition("\nanswer: ")[2]


def schema_of(engine: FakeEngine) -> Any:
    """Return the JSON schema that the last answer had to follow."""
    kind, schema = json.loads(form_of(engine).removeprefix("%grammar "))
    assert kind == "json_schema"
    return json.loads(schema)


def test_a_schema_of_pydantic(gemini: genai.Client, engine: FakeEngine) -> None:
    engine.script = saying('{"name": "Ada", "age": 36}')
    answer = ask(gemini, response_mime_type="application/json", response_schema=Person)
    assert answer.parsed == Person(name="Ada", age=36)
    made = schema_of(engine)
    assert made["properties"]["name"]["type"] == "string"
    assert made["properties"]["age"]["type"] == ["integer", "null"]
    assert list(made["properties"]) == ["name", "age"]
    assert made["additionalProperties"] is False


def test_a_json_schema_stays_as_it_is(gemini: genai.Client, engine: FakeEngine) -> None:
    schema = {"type": "object", "properties": {"any_of": {"const": 1}}}
    ask(gemini, response_mime_type="application/json", response_json_schema=schema)
    assert schema_of(engine) == schema


def test_json_without_a_schema(gemini: genai.Client, engine: FakeEngine) -> None:
    ask(gemini, response_mime_type="application/json")
    assert schema_of(engine) == {"anyOf": [{"type": "object"}, {"type": "array"}]}


def test_one_text_of_several(gemini: genai.Client, engine: FakeEngine) -> None:
    engine.script = saying("bad")
    answer = ask(gemini, response_mime_type="text/x.enum", response_schema=Mood)
    assert answer.parsed is Mood.BAD
    assert form_of(engine) == '"good" | "bad"'


def test_a_schema_of_gemini_becomes_json_schema() -> None:
    made = json_schema(
        {
            "type": "OBJECT",
            "property_ordering": ["b", "a"],
            "properties": {
                "a": {"type": "STRING", "format": "enum", "enum": ["x"], "nullable": True},
                "b": {"type": "ARRAY", "minItems": "2", "items": {"ref": "#/defs/C"}},
            },
            "defs": {"C": {"anyOf": [{"type": "INTEGER", "minimum": 1}, {"type": "NULL"}]}},
            "required": ["b"],
        },
        "s",
    )
    either = {"anyOf": [{"type": "string", "enum": ["x"]}, {"type": "null"}]}
    assert made["properties"] == {
        "b": {"type": "array", "minItems": 2, "items": {"$ref": "#/$defs/C"}},
        "a": either,
    }
    assert [*made["properties"]] == ["b", "a"]
    assert made["$defs"] == {"C": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}}
    assert made["required"] == ["b"]


def test_an_answers_objects_have_only_named_properties() -> None:
    name = {"properties": {"name": {"type": "string"}}}
    shut = {**name, "additionalProperties": False}
    assert closed({"items": name, "$defs": {"a": {"anyOf": [name, True]}}}) == {
        "items": shut,
        "$defs": {"a": {"anyOf": [shut, True]}},
    }
    assert closed({"properties": {"items": name}}) == {
        "properties": {"items": shut},
        "additionalProperties": False,
    }
    for left in (
        {**name, "additionalProperties": True},
        {"type": "object"},
        {**name, "allOf": [name]},
    ):
        assert closed(left) == left


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"type": "THING"}, "s.type"),
        ({"type": "ARRAY", "minItems": "many"}, "s.minItems"),
        ({"anyOf": [{"items": 3}]}, "s.anyOf[0].items"),
        ({"properties": []}, "s.properties"),
    ],
)
def test_a_wrong_schema_is_refused_by_name(schema: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        json_schema(schema, "s")
    assert refused.value.param == param


def test_thoughts_are_shown_on_request(gemini: genai.Client, engine: FakeEngine) -> None:
    engine.script = saying("It is late?</think>Yes.")
    hidden = ask(gemini, thinking_config={"thinking_budget": -1})
    assert [part.text for part in parts_of(hidden)] == ["Yes."]
    thinking = {"thinking_budget": 1024, "include_thoughts": True}
    answer = ask(gemini, thinking_config=thinking)
    thought, text = parts_of(answer)
    assert (thought.text, thought.thought) == ("It is late?", True)
    assert (text.text, text.thought, answer.text) == ("Yes.", None, "Yes.")
    used = usage_of(answer)
    assert used.thoughts_token_count == usage_of(hidden).thoughts_token_count
    parts = (used.prompt_token_count, used.candidates_token_count, used.thoughts_token_count)
    assert used.total_token_count == sum(count or 0 for count in parts)


@pytest.mark.parametrize(
    ("thinking", "end"),
    [
        ({"thinking_budget": 0}, "|assistant:"),
        ({"thinking_budget": 512}, "|assistant:<think>"),
        ({"thinking_level": "LOW"}, "|assistant:effort=low<think>"),
        ({"include_thoughts": False}, "|assistant:"),
    ],
)
def test_thinking_reaches_the_template(
    gemini: genai.Client, engine: FakeEngine, thinking: dict[str, Any], end: str
) -> None:
    ask(gemini, thinking_config=thinking)
    assert shown(engine) == f"|user:hi{end}"


IMAGE = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}
FILE = {"fileData": {"fileUri": "https://example.com/a.pdf"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"contents": [{"parts": [{"text": "a"}, IMAGE]}]}, "contents[0].parts[1].inlineData"),
        ({"contents": [{"parts": [FILE]}]}, "contents[0].parts[0].fileData"),
        ({"contents": [{"parts": [{}]}]}, "contents[0].parts[0]"),
        ({"contents": [{"role": "system", "parts": [{"text": "a"}]}]}, "contents[0].role"),
        ({"contents": []}, "contents"),
        ({"generationConfig": {"temperature": 3}}, "generationConfig.temperature"),
        (
            {"generationConfig": {"responseModalities": ["AUDIO"]}},
            "generationConfig.responseModalities",
        ),
        (
            {"generationConfig": {"responseMimeType": "image/png"}},
            "generationConfig.responseMimeType",
        ),
        ({"generationConfig": {"candidateCount": 99}}, "generationConfig.candidateCount"),
        ({"generationConfig": {"stopSequences": [""]}}, "generationConfig.stopSequences"),
        ({"generationConfig": {"logprobs": 2}}, "generationConfig.logprobs"),
        (
            {"generationConfig": {"responseLogprobs": True, "logprobs": 999}},
            "generationConfig.logprobs",
        ),
        ({"continuationToken": "AAAA"}, "continuationToken"),
        ({"cacheSalt": "x" * 9999}, "cacheSalt"),
    ],
)
def test_a_field_that_cannot_be_followed_is_refused_by_name(
    http: httpx.Client, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    error = error_of(post(http, **fields), 400, "INVALID_ARGUMENT")
    assert param_of(error) == param
    assert not engine.requests
