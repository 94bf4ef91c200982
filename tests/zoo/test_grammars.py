"""With Gemma's tokenizer a string of JSON may have the tags of HTML that are tokens."""

from __future__ import annotations

import json

import pytest
import tokenizers

from engine.grammars.compilation import Compilation, compiled
from engine.grammars.prepared import prepared
from engine.grammars.token_mask import GrammarConstraint
from engine.grammars.vocabulary import read_vocabulary
from engine.link.messages import Grammar
from tests.zoo.families import GEMMA3

pytestmark = pytest.mark.zoo
_SCHEMA = {"type": "object", "properties": {"html": {"type": "string"}}, "required": ["html"]}
_PAGE = {"html": "<table><tr><td>x</td></tr></table>  <b>y</b>\n"}


def test_a_page_of_html_in_json_is_what_the_model_would_write() -> None:
    inner = tokenizers.Tokenizer.from_file(str(GEMMA3.directory / "tokenizer.json"))
    vocabulary = read_vocabulary(GEMMA3.directory, 262208, (106,))
    grammar = compiled(prepared(Grammar("json_schema", json.dumps(_SCHEMA))), vocabulary)
    constraint = GrammarConstraint(Compilation(grammar))
    ids = inner.encode(json.dumps(_PAGE), add_special_tokens=False).ids
    assert inner.token_to_id("<table>") in ids
    for token in ids:
        assert constraint.allowed()[token // 32] >> (token % 32) & 1
        constraint.advance(token)
