from __future__ import annotations

import json
import random

import pytest

from handbook.training.facts import FREE_HEADS, FREE_MODIFIERS, KINDS, Question, Subject, state
from handbook.training.names import Source, Split, split_of
from handbook.training.tools import (
    LIVE_KINDS,
    Tool,
    any_tool,
    getter,
    getter_kind,
    odd_kind,
    result_text,
)

ASKED = Question("What is the door code of the Oslo office?", "?", "door code", "door code", "Oslo")
SEEDS = range(200)


def source(seed: int) -> Source:
    return Source(random.Random(seed), Split.TRAIN)


def properties(tool: Tool) -> list[str]:
    return list(tool.schema["function"]["parameters"]["properties"])


def tools() -> list[Tool]:
    anything = [any_tool(source(seed)) for seed in SEEDS]
    return anything + [getter(source(seed), getter_kind(source(seed), ())) for seed in SEEDS]


def test_a_tool_is_offered_as_openai_has_it() -> None:
    for tool in tools():
        assert tool.schema["type"] == "function"
        function = tool.schema["function"]
        assert function["name"].replace("_", "").isalnum(), function["name"]
        assert len(function["name"]) <= 64
        parameters = function["parameters"]
        assert parameters["type"] == "object"
        assert set(parameters.get("required", [])) <= set(parameters["properties"])


def test_a_call_gives_what_is_required_in_the_schemas_order() -> None:
    for tool in tools():
        call = tool.call(ASKED)
        assert call["name"] == tool.schema["function"]["name"]
        required = tool.schema["function"]["parameters"].get("required", [])
        assert set(required) <= set(call["arguments"]) <= set(properties(tool))
        assert list(call["arguments"]) == [n for n in properties(tool) if n in call["arguments"]]


def test_each_sort_of_tool_is_asked_in_its_own_way() -> None:
    seen: dict[str, Tool] = {tool.sort: tool for tool in tools()}
    assert seen.keys() == {"lookup", "search", "getter"}
    lookup, search, of_one_kind = seen["lookup"], seen["search"], seen["getter"]
    assert lookup.call(ASKED)["arguments"] == {lookup.field: "door code", lookup.subject: "Oslo"}
    assert search.call(ASKED)["arguments"] == {search.subject: "door code Oslo"}
    assert of_one_kind.call(ASKED)["arguments"] == {of_one_kind.subject: "Oslo"}


def test_a_getter_is_named_after_its_kind() -> None:
    kind = next(kind for kind in KINDS if kind.name == "birthday")
    names = {getter(source(seed), kind).name for seed in SEEDS}
    assert "get_birthday" in names
    assert all("birthday" in name.lower() for name in names)


def test_the_weather_is_a_kind_that_no_handbook_states() -> None:
    assert "weather" in {kind.name for kind in LIVE_KINDS}
    assert not {kind.name for kind in LIVE_KINDS} & {kind.name for kind in KINDS}


@pytest.mark.parametrize("tool", [any_tool(source(1)), getter(source(2), KINDS[1])])
def test_a_result_has_the_value_in_every_form(tool: Tool) -> None:
    forms = set()
    for seed in range(400):
        fact = state(source(seed), KINDS[1], Subject("city", "Oslo"), lines=True)
        text = result_text(source(seed), tool, ASKED, fact.value, fact.sentence)
        assert fact.value in text
        try:
            forms.add(type(json.loads(text)).__name__)
        except json.JSONDecodeError:
            forms.add("a sentence")
    assert forms == {"a sentence", "int", "dict", "list"}


def test_a_result_says_its_value_once_and_no_other_under_its_key() -> None:
    for seed in range(300):
        found = result_text(source(seed), any_tool(source(seed)), ASKED, "4821", "It is 4821.")
        assert found.count("4821") == 1


def test_the_weather_may_come_in_fields() -> None:
    weather = next(kind for kind in LIVE_KINDS if kind.name == "weather")
    asked = Question("What is the weather in Oslo?", "?", "weather", "weather", "Oslo")
    tool = getter(source(1), weather)
    results = {
        result_text(source(seed), tool, asked, "light rain, -4 degrees", "S") for seed in SEEDS
    }
    apart = [text for text in results if "degrees" not in text and text != "S"]
    assert len(apart) > 5
    for text in apart:
        assert {"light rain", -4} <= set(json.loads(text).values())


def test_an_odd_kind_has_a_word_of_its_sources_split() -> None:
    nouns = {odd_kind(source(seed), "city").nouns[0] for seed in SEEDS}
    words = {word for noun in nouns for word in noun.split()}
    odd = words - set(FREE_HEADS) - set(FREE_MODIFIERS)
    assert len(odd) > 150
    assert {split_of(word) for word in odd} == {Split.TRAIN}
