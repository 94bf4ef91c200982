"""Calls and structured output in a whole server: answers always have the required form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

MODEL = "tiny"
HI = [{"role": "user", "content": "Hi"}]
SEEDS = range(3)
BOUNDED = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
CLOCK = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"weather": BOUNDED, "clock": CLOCK}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
NAMED = {"type": "function", "function": {"name": "weather"}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "weather", "schema": BOUNDED}}


ENDS = {str(byte): 8 for byte in b'"}]'}  # otherwise a random model would write for ever


def asked(client: openai.OpenAI, **fields: Any) -> ChatCompletion:
    request = {"model": MODEL, "messages": HI, "max_tokens": 1000, **fields}
    answer: ChatCompletion = client.chat.completions.create(**request)
    return answer


def streamed(client: openai.OpenAI, **fields: Any) -> ChatCompletion:
    request = {"model": MODEL, "messages": HI, "max_tokens": 1000, **fields}
    with client.chat.completions.stream(**request) as stream:
        return stream.get_final_completion()


# A stream has the same answer under the same seed.
either = pytest.mark.parametrize(("ask", "seed"), [(asked, 0), (streamed, 1), (asked, 2)])


@either
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_calls_that_must_be_made_are_right(
    client: openai.OpenAI, jsonschema: Any, ask: Any, choice: Any, seed: int
) -> None:
    answer = ask(client, tools=TOOLS, tool_choice=choice, seed=seed, parallel_tool_calls=False)
    [said] = answer.choices
    assert said.finish_reason == "tool_calls"
    assert not said.message.content
    [call] = said.message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    assert choice == "required" or call.function.name == "weather"


def test_without_a_grammar_nothing_is_called(client: openai.OpenAI) -> None:
    for seed in SEEDS:
        answer = asked(client, tools=TOOLS, seed=seed, max_tokens=100)
        assert not answer.choices[0].message.tool_calls


@either
@pytest.mark.parametrize("tools", [openai.omit, TOOLS], ids=["alone", "with tools"])
def test_a_schema_is_followed(
    client: openai.OpenAI, jsonschema: Any, ask: Any, tools: Any, seed: int
) -> None:
    answer = ask(client, response_format=FORMAT, tools=tools, seed=seed, tool_choice="none")
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content), BOUNDED)


def test_with_tools_a_text_of_the_schema_or_a_call_comes(
    client: openai.OpenAI, jsonschema: Any
) -> None:
    kinds = set()
    for seed in range(12):
        # biases towards the ends of strings, whose length a tool that is not strict leaves
        # unbounded
        how = {"seed": seed, "logit_bias": ENDS}
        answer = asked(client, response_format=FORMAT, tools=TOOLS, **how)
        message = answer.choices[0].message
        for call in message.tool_calls or ():
            assert call.type == "function"
            assert isinstance(json.loads(call.function.arguments), dict)
        if not message.tool_calls:
            jsonschema.validate(json.loads(message.content or ""), BOUNDED)
        kinds.add(bool(message.tool_calls))
    assert kinds == {False, True}


FOLLOWED: dict[str, tuple[dict[str, Any], str]] = {
    "regex": ({"structured_outputs": {"regex": "[a-c]{3}/\\d"}}, r"[a-c]{3}/\d"),
    "choice": ({"structured_outputs": {"choice": ["yes", "n/o", '"ä"']}}, 'yes|n/o|"ä"'),
    "grammar": ({"structured_outputs": {"grammar": 'root ::= "a" [0-9]'}}, r"a[0-9]"),
    "guided_regex": ({"guided_regex": "x{5}"}, "x{5}"),
    "guided_choice": ({"guided_choice": ["a", "b"]}, "a|b"),
    "guided_grammar": ({"guided_grammar": 'root ::= "q" | "r"'}, "q|r"),
    "regex of SGLang": ({"regex": "[01]{4}"}, "[01]{4}"),
    "ebnf": ({"ebnf": 'root ::= "ab"'}, "ab"),
    "grammar of llama.cpp": ({"grammar": 'root ::= [xy] "z"'}, "[xy]z"),
}


@pytest.mark.parametrize("tools", [openai.omit, TOOLS], ids=["alone", "with tools"])
@pytest.mark.parametrize("case", FOLLOWED)
def test_each_kind_of_grammar_is_followed(client: openai.OpenAI, case: str, tools: Any) -> None:
    fields, pattern = FOLLOWED[case]
    for seed in SEEDS:
        answer = asked(client, extra_body=fields, tools=tools, seed=seed, logit_bias=ENDS)
        said = answer.choices[0].message
        if not said.tool_calls:
            assert answer.choices[0].finish_reason == "stop"
            assert re.fullmatch(pattern, said.content or "")
        else:
            assert tools is TOOLS


def test_completions_follow_too(client: openai.OpenAI) -> None:
    for seed in SEEDS:
        answer = client.completions.create(
            model=MODEL, prompt="x", seed=seed, extra_body={"guided_regex": "[a-c]{3}"}
        )
        assert re.fullmatch("[a-c]{3}", answer.choices[0].text)
        assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("seed", SEEDS)
def test_any_object(client: openai.OpenAI, seed: int) -> None:
    how = {"seed": seed, "logit_bias": ENDS}
    answer = asked(client, response_format={"type": "json_object"}, **how)
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


BAD = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
BAD_TOOL = {"type": "function", "function": {"name": "f", "parameters": BAD, "strict": True}}
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "response_format": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": BAD}}},
        "response_format",
        "not",
    ),
    "structured_outputs": ({"structured_outputs": {"json": BAD}}, "structured_outputs", "not"),
    "guided_json": ({"guided_json": BAD}, "guided_json", "not"),
    "required": ({"tools": [BAD_TOOL], "tool_choice": "required"}, "tools", "not"),
    "strict": ({"tools": [BAD_TOOL]}, "tools", "not"),
    "remote": (
        {"guided_json": {"$ref": "https://example.org/s.json"}},
        "guided_json",
        "outside of the schema",
    ),
    "regex": ({"structured_outputs": {"regex": "(?<=a)b"}}, "structured_outputs", "look-behind"),
    "grammar": ({"guided_grammar": "root ::= nowhere"}, "guided_grammar", "nowhere"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_followed_is_a_400_that_names_the_field_and_the_keyword(
    client: openai.OpenAI, case: str, stream: bool
) -> None:
    fields, param, why = REFUSED[case]
    with pytest.raises(openai.BadRequestError) as refused:
        asked(client, extra_body=fields, stream=stream)
    assert str(refused.value.param).startswith(param)
    assert why in refused.value.message


def test_a_tool_that_is_not_strict_may_have_any_schema(client: openai.OpenAI) -> None:
    loose = {"type": "function", "function": {"name": "f", "parameters": BAD}}
    free = asked(client, tools=[loose, *TOOLS], max_tokens=3, seed=0)
    held = asked(client, tools=[loose, *TOOLS], response_format=FORMAT, max_tokens=3, seed=0)
    for answer in (free, held):
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 3
    # positive control: a bad tool is noticed
    with pytest.raises(openai.BadRequestError, match="`not`"):
        asked(client, tools=[BAD_TOOL, *TOOLS], max_tokens=3)


TAGS = {
    "structures": [{"begin": "<f>", "schema": BOUNDED, "end": "</f>"}],
    "triggers": ["<"],
}
BEGINS = {str(ord("<")): 4}


def test_structural_tags_are_followed(client: openai.OpenAI, jsonschema: Any) -> None:
    tag = {"type": "tag", "begin": "<f>", "content": {"type": "json_schema"}, "end": "</f>"}
    tag["content"] = {"type": "json_schema", "json_schema": BOUNDED}
    newer = {"type": "structural_tag", "format": tag}
    for seed in SEEDS:
        answer = asked(client, response_format=newer, seed=seed)
        found = re.fullmatch("<f>(.*)</f>", answer.choices[0].message.content or "", re.DOTALL)
        assert found
        jsonschema.validate(json.loads(found[1]), BOUNDED)
        assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "structural_tag", **TAGS}},
        {"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", **TAGS})}},
    ],
    ids=["response_format", "structured_outputs"],
)
def test_what_follows_a_trigger_is_a_tag(
    client: openai.OpenAI, jsonschema: Any, fields: dict[str, Any]
) -> None:
    found = 0
    for seed in SEEDS:
        how = {"seed": seed, "logit_bias": BEGINS, "max_tokens": 300}
        answer = asked(client, extra_body=fields, **how)
        for value in tags_in(answer.choices[0].message.content or ""):
            jsonschema.validate(value, BOUNDED)
            found += 1
    assert found


def tags_in(text: str) -> Iterator[Any]:
    """Yield the JSON value in each tag. The last value may be cut off."""
    decoder, end = json.JSONDecoder(), 0
    while (begin := text.find("<", end)) >= 0:
        assert text.startswith("<f>", begin) or text.endswith(text[begin:])
        try:
            value, end = decoder.raw_decode(text, begin + len("<f>"))
        except json.JSONDecodeError:
            return
        if end < len(text):
            assert "</f>".startswith(text[end : end + 4])
        end += len("</f>")
        yield value
