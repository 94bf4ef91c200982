"""The text of one grammar terminal never matches another terminal."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from engine.grammars.syntax.gbnf import ROOT, rules_of
from engine.grammars.syntax.terminals import Terminals
from engine.grammars.vocabulary import Vocabulary
from tests.doubles.grammars.recogniser import Recogniser
from tests.engine.grammars.texts import Texts
from tests.examples import examples

LEAVES = ['"a"', '"ab"', '"ba"', '"abc"', "[ab]", "[a-c]", "[^a]", ".", '"é"', "[éè]", "[^é]"]
NAMES = ["x", "y"]
COUNTS = ["*", "+", "?", "{2}", "{1,2}", "{0,9}", "{2,}"]


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        several.map(" ".join),
        several.map(lambda parts: f"({' | '.join(parts)})"),
        several.map(lambda parts: f"({' | '.join(parts)} | )"),
        st.tuples(inner, st.sampled_from(COUNTS)).map(lambda one: f"({one[0]}){one[1]}"),
    )


bodies = st.recursive(st.sampled_from([*LEAVES, *NAMES, "root"]), grown, max_leaves=6)
plain = st.recursive(st.sampled_from(LEAVES), grown, max_leaves=4)
grammars = st.tuples(bodies, plain, bodies, plain).map(
    lambda one: f"root ::= {one[0]} | {one[1]}\nx ::= {one[2]} | {one[3]}\ny ::= {one[3]}"
)
texts = st.lists(st.text("abcéè", max_size=6), min_size=20, max_size=20)


@examples(4, suppress_health_check=list(HealthCheck))
@given(grammars, texts)
def test_they_have_the_same_texts_as_characters_would(
    vocabulary: Vocabulary, grammar: str, said: list[str]
) -> None:
    rules = rules_of(grammar, lambda _: pytest.fail("there is no other grammar in it"))
    right, found = Recogniser(rules), Texts(vocabulary, "gbnf", grammar)
    assert [text in found for text in said] == [text in right for text in said]


def numbers(grammar: str) -> list[int]:
    """List the terminals of a grammar, by number."""
    rules = rules_of(grammar, lambda _: pytest.fail("there is no other grammar in it"))
    found = Terminals(rules, ROOT)
    return [n for n in range(len(found.wholes)) if n not in found.apart]


def test_what_is_regular_as_a_whole_is_one_terminal() -> None:
    assert numbers('root ::= t "Answer: " ("yes" | "no")\nt ::= [a-z ]+') == [0]
