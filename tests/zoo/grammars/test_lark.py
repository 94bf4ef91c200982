"""Calls of tools whose input follows a Lark grammar are valid, with a published tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from engine.grammars.check import checked_over
from engine.grammars.compilation import Compilation, compiled
from engine.grammars.syntax.lark_pattern import pattern_of
from engine.grammars.syntax.lark_reader import START, rules_of_lark
from engine.grammars.vocabulary import Vocabulary, read_vocabulary
from engine.link.messages import Grammar
from tests.doubles.grammars.lark_grammars import RECURSIVE, LarkTexts, lark_grammars
from tests.zoo.grammars.walks import walked
from tests.zoo.here import here
from tests.zoo.sources import QWEN2_5

pytestmark = pytest.mark.zoo
END = 151_645
CLOSE = (*'"\\n*;', "'")  # texts that are single tokens
CLOSE_NESTED = (*CLOSE, *")}]:1", '\\"')


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return read_vocabulary(here(QWEN2_5) / "models", 151_936, (END,))


def grammars() -> Iterator[tuple[str, Grammar]]:
    """Yield each grammar in the form in which calls use it: as a pattern if possible, else
    unchanged.
    """
    for name, lark in lark_grammars().items():
        pattern = pattern_of(rules_of_lark(lark), START)
        if pattern is not None:
            yield name, Grammar("json_schema", json.dumps({"type": "string", "pattern": pattern}))
        yield name, Grammar("lark_string", lark)


@pytest.mark.parametrize(("name", "grammar"), [*grammars()])
def test_walks_end_in_texts_of_the_grammar(
    name: str, grammar: Grammar, vocabulary: Vocabulary
) -> None:
    found = checked_over(grammar, vocabulary)
    assert not found.error
    compilation = Compilation(compiled(found.text, vocabulary))
    close = CLOSE_NESTED if name in RECURSIVE else CLOSE
    texts = [walked(compilation, vocabulary, END, seed, close=close) for seed in range(20)]
    right = LarkTexts(lark_grammars()[name])
    assert [text for text in texts if json.loads(text) not in right] == []
    assert len(set(texts)) > 5
