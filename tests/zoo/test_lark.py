"""Texts for tools that are held to a grammar in Lark are its texts, with a shipped tokenizer."""

from __future__ import annotations

import json

import pytest

from engine.grammars.check import checked_over
from engine.grammars.compilation import Compilation, compiled
from engine.grammars.syntax.lark_reader import pattern_of_lark
from engine.grammars.vocabulary import Vocabulary, read_vocabulary
from engine.link.messages import Grammar
from tests.doubles.lark_grammars import LarkTexts, lark_grammars
from tests.zoo.here import here
from tests.zoo.sources import QWEN2_5
from tests.zoo.walks import walked

pytestmark = pytest.mark.zoo
END = 151_645


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return read_vocabulary(here(QWEN2_5) / "models", 151_936, (END,))


@pytest.mark.parametrize("name", lark_grammars())
def test_walks_end_in_texts_of_the_grammar(name: str, vocabulary: Vocabulary) -> None:
    lark = lark_grammars()[name]
    schema = {"type": "string", "pattern": pattern_of_lark(lark)}
    found = checked_over(Grammar("json_schema", json.dumps(schema)), vocabulary)
    assert not found.error
    compilation = Compilation(compiled(found.text, vocabulary))
    texts = [walked(compilation, vocabulary, END, seed, close="\"\\n*;'") for seed in range(20)]
    right = LarkTexts(lark)
    assert [text for text in texts if json.loads(text) not in right] == []
    assert len(set(texts)) > 5
