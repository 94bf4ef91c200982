"""JSON that a model writes under a grammar follows its schema, with published tokenizers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers

from engine.grammars.check import checked_over
from engine.grammars.compilation import Compilation, compiled
from engine.grammars.token_mask import GrammarConstraint
from engine.grammars.vocabulary import Vocabulary, read_vocabulary
from engine.link.messages import Grammar
from tests.zoo.families import GEMMA3, LLAMA3

pytestmark = pytest.mark.zoo
_SCHEMA = {"type": "object", "properties": {"html": {"type": "string"}}, "required": ["html"]}
_PAGE = {"html": "<table><tr><td>x</td></tr></table>  <b>y</b>\n"}


# From JSONSchemaBench (Github_trivial, o9908; Github_medium, o21115). Each pattern or count costs
# the library's lexer more than 100,000 steps for one mask over a large vocabulary.
_NAMES = {"type": "object", "patternProperties": {"^.{1,255}$": {}}}
_WORDS = {"type": "string", "pattern": r"^$|(^(?:\S+\s+){0,49}\S+$)"}
# Github_easy, o21053: llguidance cannot count this pattern's words in a text of up to 5,000
# characters.
_TEXT = {"minLength": 1, "maxLength": 5000, "pattern": r"^$|(^(?:\S+\s+){0,99}\S+$)"}
_ANSWERED: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "string", **_TEXT}},
}
_ANSWERED |= {"required": ["answer"]}


def test_a_page_of_html_in_json_is_what_the_model_would_write() -> None:
    inner = tokenizers.Tokenizer.from_file(str(GEMMA3.directory / "tokenizer.json"))
    assert inner.token_to_id("<table>") in encoded(inner, _PAGE)
    follow(_SCHEMA, _PAGE, inner, read_vocabulary(GEMMA3.directory, 262208, (106,)))


def test_long_names_and_texts_of_many_words_are_followed() -> None:
    inner = tokenizers.Tokenizer.from_file(str(LLAMA3.directory / "tokenizer.json"))
    vocabulary = read_vocabulary(LLAMA3.directory, 128256, (128009,))
    follow(_NAMES, {"key1": {}, "key2": {"a": 1}}, inner, vocabulary)
    follow(_WORDS, "The lab is wheelchair accessible.", inner, vocabulary)
    follow(_ANSWERED, {"answer": " ".join(["wheelchair"] * 100)}, inner, vocabulary)
    follow({"type": "string", "maxLength": 20_000}, "Two words. " * 1500, inner, vocabulary)


def test_a_text_that_could_not_be_followed_is_refused_at_the_start() -> None:
    vocabulary = read_vocabulary(LLAMA3.directory, 128256, (128009,))
    texts = {**_ANSWERED["properties"]["answer"], "minLength": 300}
    schema = {**_ANSWERED, "properties": {"answer": texts}}
    found = checked_over(Grammar("json_schema", json.dumps(schema)), vocabulary)
    assert "a pattern and a length that are too large together" in found.error
    lenient = json.dumps({**schema, "x-guidance": {"lenient": True}})
    assert not checked_over(Grammar("lark", f"start: %json {lenient}"), vocabulary).error


def encoded(inner: tokenizers.Tokenizer, value: Any) -> list[int]:
    ids: list[int] = inner.encode(json.dumps(value), add_special_tokens=False).ids
    return ids


def follow(schema: Any, value: Any, inner: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Write `value` with the model's own tokens; check that each is allowed."""
    found = checked_over(Grammar("json_schema", json.dumps(schema)), vocabulary)
    assert not found.error
    constraint = GrammarConstraint(Compilation(compiled(found.text, vocabulary)))
    for token in encoded(inner, value):
        allowed = constraint.allowed()
        assert constraint.error is None
        assert allowed[token // 32] >> (token % 32) & 1
        constraint.advance(token)
