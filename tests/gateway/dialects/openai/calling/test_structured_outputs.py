"""Each way to ask for a structured output gives the engine a grammar, or is refused."""

from __future__ import annotations

import json
from typing import Any, get_args

import openai
import pytest
from pydantic import BaseModel

from engine.errors import InvalidGrammar
from engine.link.messages import Grammar
from gateway.dialects.openai.requests.response_format import grammar_of
from gateway.dialects.openai_shape import ServiceTier
from tests.doubles.engine.fake_engine import FakeEngine, failing_at, prompt_of, saying
from tests.doubles.gateway.served import MODEL
from tests.gateway.dialects.openai.calling.hermes import HI, OSLO, TOOLS, tool, written
from tests.gateway.dialects.openai.calling.test_calls import asked, calls_of, either

SCHEMA = {"type": "object", "properties": {"ä": {"type": "integer"}}}
# the schema as clients serialise it
TEXT = json.dumps(SCHEMA, ensure_ascii=False, separators=(",", ":"))
ANY = {"type": "object"}
GBNF = 'root ::= "a"'
LARK = 'start: WORD "!"  # no ::= here\nWORD: /[a-z]+/'
OPTIONS = "%llguidance {}\n"


def named(schema: Any = SCHEMA, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, **more}}


def given(engine: FakeEngine) -> str:
    """Return the grammar that the engine was given."""
    grammar = engine.requests[-1].sampling.grammar
    assert grammar is not None
    return grammar.text


def part(kind: str, text: str) -> str:
    """Return the form that a grammar has as part of another grammar."""
    return json.dumps([kind, text], ensure_ascii=False, separators=(",", ":"))


ALIKE: dict[str, tuple[dict[str, Any], str]] = {
    "response_format": ({"response_format": named()}, part("json_schema", TEXT)),
    "strict": ({"response_format": named(strict=True)}, part("json_schema", TEXT)),
    "a schema beside its type": (
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        part("json_schema", TEXT),
    ),
    "an object with a schema": (
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        part("json_schema", TEXT),
    ),
    "json_object": (
        {"response_format": {"type": "json_object"}},
        part("json_schema", json.dumps(ANY)),
    ),
    "structured_outputs": ({"structured_outputs": {"json": SCHEMA}}, part("json_schema", TEXT)),
    "a text of it": ({"structured_outputs": {"json": TEXT}}, part("json_schema", TEXT)),
    "any object": (
        {"structured_outputs": {"json_object": True}},
        part("json_schema", json.dumps(ANY)),
    ),
    "regex": ({"structured_outputs": {"regex": "a+"}}, part("regex", "a+")),
    "grammar": ({"structured_outputs": {"grammar": GBNF}}, part("gbnf", GBNF)),
    "choice": ({"structured_outputs": {"choice": ["é", '"']}}, '"\\u00e9" | "\\""'),
    "guided_json": ({"guided_json": SCHEMA}, part("json_schema", TEXT)),
    "guided_json as a text": ({"guided_json": TEXT}, part("json_schema", TEXT)),
    "guided_regex": ({"guided_regex": "a+"}, part("regex", "a+")),
    "guided_choice": ({"guided_choice": ["a", "b"]}, '"a" | "b"'),
    "guided_grammar": ({"guided_grammar": GBNF}, part("gbnf", GBNF)),
    "of SGLang: regex": ({"regex": "a+"}, part("regex", "a+")),
    "of SGLang: ebnf": ({"ebnf": GBNF}, part("gbnf", GBNF)),
    "of SGLang: json_schema": ({"json_schema": TEXT}, part("json_schema", TEXT)),
    "of llama.cpp: json_schema": ({"json_schema": SCHEMA}, part("json_schema", TEXT)),
    "of llama.cpp: grammar": ({"grammar": GBNF}, part("gbnf", GBNF)),
    "a flat schema": (
        {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
        part("json_schema", TEXT),
    ),
    "a text of a flat schema": (
        {"response_format": {"type": "json_schema", "json_schema": TEXT}},
        part("json_schema", TEXT),
    ),
    "an object with a named schema": (
        {"response_format": {"type": "json_object", "json_schema": {"schema": SCHEMA}}},
        part("json_schema", TEXT),
    ),
    "of Hugging Face": (
        {"response_format": {"type": "json_object", "value": SCHEMA}},
        part("json_schema", TEXT),
    ),
    "of Hugging Face: json": (
        {"response_format": {"type": "json", "value": SCHEMA}},
        part("json_schema", TEXT),
    ),
    "of Hugging Face: json_schema": (
        {"response_format": {"type": "json_schema", "value": {"name": "a", "schema": SCHEMA}}},
        part("json_schema", TEXT),
    ),
    "of Hugging Face: regex": (
        {"response_format": {"type": "regex", "value": "a+"}},
        part("regex", "a+"),
    ),
    "of Together: regex": (
        {"response_format": {"type": "regex", "pattern": "a+"}},
        part("regex", "a+"),
    ),
    "of Fireworks: grammar": (
        {"response_format": {"type": "grammar", "grammar": GBNF}},
        part("gbnf", GBNF),
    ),
    "true": ({"response_format": named(True)}, part("json_schema", "true")),
    "guided_json: true": ({"guided_json": True}, part("json_schema", "true")),
    "Lark": ({"guided_grammar": LARK}, part("clients_lark", LARK)),
    "Lark with options": (
        {"structured_outputs": {"grammar": OPTIONS + LARK}},
        part("clients_lark", OPTIONS + LARK),
    ),
    "one schema under two names": (
        {"response_format": named(), "guided_json": json.dumps(SCHEMA)},
        part("json_schema", TEXT),
    ),
    "one regex under two names": ({"guided_regex": "a+", "regex": "a+"}, part("regex", "a+")),
    "any object, and which": (
        {"response_format": {"type": "json_object"}, "guided_json": SCHEMA},
        part("json_schema", TEXT),
    ),
    "any object twice": (
        {"response_format": {"type": "json_object"}, "guided_json": ANY},
        part("json_schema", json.dumps(ANY)),
    ),
}


@pytest.mark.parametrize("case", ALIKE)
def test_each_way_of_asking(client: openai.OpenAI, engine: FakeEngine, case: str) -> None:
    fields, expected = ALIKE[case]
    asked(client, tools=openai.omit, extra_body=fields, max_tokens=1)
    assert expected in given(engine)


def test_text_is_free(client: openai.OpenAI, engine: FakeEngine) -> None:
    for fields in ({}, {"response_format": {"type": "text"}}, {"structured_outputs": None}):
        asked(client, extra_body=fields, max_tokens=1)
        assert engine.requests[-1].sampling.grammar is None


def test_completions_are_held_to_it_too(client: openai.OpenAI, engine: FakeEngine) -> None:
    client.completions.create(model=MODEL, prompt="x", extra_body={"guided_regex": "a+"})
    assert engine.requests[-1].sampling.grammar == Grammar("regex", "a+")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no schema": ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    "another type": ({"response_format": {"type": "python"}}, "response_format.type"),
    "a list": ({"response_format": named([])}, "response_format.json_schema.schema"),
    "nothing": ({"structured_outputs": {}}, "structured_outputs"),
    "two": ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
    "two fields": ({"response_format": named(), "guided_regex": "a"}, "guided_regex"),
    "two of others": ({"regex": "a", "ebnf": GBNF}, "ebnf"),
    "two schemas": (
        {"response_format": named(), "guided_json": ANY | {"required": ["a"]}},
        "guided_json",
    ),
    "two schemas in one": (
        {"response_format": {**named(), "value": {"type": "array"}}},
        "response_format.value",
    ),
    "a list, and any object": (
        {"response_format": {"type": "json_object"}, "guided_json": {"type": "array"}},
        "guided_json",
    ),
    "a name that is none": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": 1, "schema": {}}}},
        "response_format.json_schema.name",
    ),
    "a format without its regex": (
        {"response_format": {"type": "regex"}},
        "response_format.pattern",
    ),
    "a format without its grammar": (
        {"response_format": {"type": "grammar"}},
        "response_format.grammar",
    ),
    "no choice": ({"guided_choice": []}, "guided_choice"),
    "an empty choice": ({"guided_choice": ["a", ""]}, "guided_choice"),
    "no JSON": ({"guided_json": "{"}, "guided_json"),
    "a number": ({"json_schema": "1"}, "json_schema"),
    "deep": ({"guided_json": '{"items":' * 2000 + "{}" + "}" * 2000}, "guided_json"),
    "white space": (
        {"structured_outputs": {"json": ANY, "whitespace_pattern": " "}},
        "structured_outputs.whitespace_pattern",
    ),
    "search": ({"web_search_options": {}}, "web_search_options"),
    "tier": ({"service_tier": "bogus"}, "service_tier"),
    "processors": ({"logits_processors": ["x"]}, "logits_processors"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_followed_is_refused(
    client: openai.OpenAI, engine: FakeEngine, case: str
) -> None:
    fields, param = WRONG[case]
    with pytest.raises(openai.BadRequestError) as refused:
        asked(client, tools=openai.omit, extra_body=fields)
    assert str(refused.value.param).startswith(param)
    assert engine.requests == []


@pytest.mark.parametrize("tier", get_args(ServiceTier))
def test_a_tier_there_is(client: openai.OpenAI, engine: FakeEngine, tier: Any) -> None:
    asked(client, service_tier=tier, max_tokens=1)
    assert engine.requests[-1].priority == ("batch" if tier == "flex" else "interactive")


REFUSED = InvalidGrammar('the JSON schema cannot be used: Unimplemented keys: ["not"]')
STRICT = [tool("clock", {}, strict=True)]
ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "response_format": ({"response_format": named()}, "response_format"),
    "structured_outputs": ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json"),
    "guided_json": ({"guided_json": SCHEMA}, "guided_json"),
    "tools": ({"tools": TOOLS, "tool_choice": "required"}, "tools"),
    "strict tools": ({"tools": STRICT}, "tools"),
    "required with a format": (
        {"tools": TOOLS, "tool_choice": "required", "response_format": named()},
        "tools",
    ),
    "a format with tools": ({"tools": TOOLS, "response_format": named()}, "response_format"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", ASKED)
def test_the_engine_s_refusal_names_the_field(
    client: openai.OpenAI, engine: FakeEngine, case: str, stream: bool
) -> None:
    fields, param = ASKED[case]
    engine.pace = failing_at(0, REFUSED)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=HI, stream=stream, extra_body=fields)
    assert str(refused.value.param).startswith(param)
    assert "not" in refused.value.message


class Weather(BaseModel):
    city: str
    days: int


def test_the_client_parses_the_answer(client: openai.OpenAI, engine: FakeEngine) -> None:
    said = f"<think>\nso\n</think>\n\n{json.dumps(OSLO[1])}"
    engine.script = saying(said)
    answer = client.chat.completions.parse(
        model=MODEL, messages=HI, response_format=Weather, logprobs=True
    )
    [choice] = answer.choices
    assert choice.message.parsed == Weather(city="Oslo", days=2)
    assert choice.logprobs
    assert "".join(token.token for token in choice.logprobs.content or ()) == said
    with client.chat.completions.stream(
        model=MODEL, messages=HI, response_format=Weather
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == Weather(city="Oslo", days=2)


@either
def test_with_a_schema_for_text_tools_may_be_called_still(
    client: openai.OpenAI, engine: FakeEngine, ask: Any
) -> None:
    engine.script = saying(written(OSLO))
    answer = ask(client, response_format=named())
    assert calls_of(answer) == [OSLO]
    assert part("json_schema", TEXT) in given(engine)
    assert "weather" in given(engine)
    engine.script = saying('{"ä": 1}')
    assert ask(client, response_format=named()).choices[0].message.content == '{"ä": 1}'


def test_a_call_that_must_be_made_is_no_text(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying(written(OSLO))
    answer = asked(client, response_format=named(), tool_choice="required")
    assert calls_of(answer) == [OSLO]
    assert part("json_schema", TEXT) not in given(engine)


def test_a_prompt_is_the_same_with_and_without(client: openai.OpenAI, engine: FakeEngine) -> None:
    asked(client, max_tokens=1)
    asked(client, max_tokens=1, response_format=named())
    first, second = map(prompt_of, engine.requests)
    assert first == second


def test_a_batch_of_prompts_has_one_grammar(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("a")
    client.completions.create(model=MODEL, prompt=["x", "y"], extra_body={"guided_regex": "a+"})
    one, other = (request.sampling.grammar for request in engine.requests[-2:])
    assert one is other is not None


@pytest.mark.parametrize("blanks", ["\n", " \n", "\r\n", " "])
def test_blank_lines_before_a_rule_are_gone_through_once(blanks: str) -> None:
    assert grammar_of(blanks * 100_000 + LARK).kind == "clients_lark"
    assert grammar_of(blanks * 100_000 + GBNF).kind == "gbnf"
