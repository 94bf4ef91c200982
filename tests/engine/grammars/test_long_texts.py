"""Texts may reach their maximum length, though the lexer needs a state for each character."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt

from engine.grammars.compilation import Compilation, compiled
from engine.grammars.limits import MAX_STATES
from engine.grammars.prepared import prepared
from engine.grammars.token_mask import GrammarConstraint
from engine.grammars.vocabulary import Vocabulary
from engine.link.messages import Grammar
from tests.doubles.engine.tiny_model import EOS

LONG = MAX_STATES // 3  # characters; the lexer needs four states for each
QUOTE = ord('"')


def compilation_of(schema: object, vocabulary: Vocabulary) -> Compilation:
    text = prepared(Grammar("json_schema", json.dumps(schema)))
    return Compilation(compiled(text, vocabulary))


def follow(constraint: GrammarConstraint, text: str) -> int:
    """Write the text; return how many of its bytes were allowed."""
    for place, token in enumerate(text.encode()):
        mask = constraint.allowed()
        if constraint.error is not None or not mask[token // 32] >> (token % 32) & 1:
            return place
        constraint.advance(token)
    return len(text.encode())


def bits(constraint: GrammarConstraint) -> npt.NDArray[np.uint8]:
    return np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")


def test_a_text_may_be_longer_than_the_lexer_has_states_for(vocabulary: Vocabulary) -> None:
    compilation = compilation_of({"type": "string", "maxLength": LONG}, vocabulary)
    first, constraint = compilation.grammar, GrammarConstraint(compilation)
    assert follow(constraint, '"' + LONG * "a") == LONG + 1
    assert compilation.grammar is not first, "the lexer had states for the whole text"
    assert [*np.flatnonzero(bits(constraint))] == [QUOTE]
    assert follow(constraint, '"') == 1
    assert bits(constraint)[EOS]


def test_another_sequence_goes_on_in_the_new_grammar(vocabulary: Vocabulary) -> None:
    compilation = compilation_of({"type": "string", "maxLength": LONG}, vocabulary)
    one, other = GrammarConstraint(compilation), GrammarConstraint(compilation)
    assert follow(other, '"abc') == 4
    assert follow(one, '"' + LONG * "a" + '"') == LONG + 2
    renewed = compilation.grammar
    assert follow(other, 'def"') == 4
    assert compilation.grammar is renewed
    assert bits(other)[EOS]


def test_a_text_that_a_new_grammar_cannot_follow_either_is_an_error(
    vocabulary: Vocabulary,
) -> None:
    compilation = compilation_of({"type": "string", "maxLength": 2 * MAX_STATES}, vocabulary)
    constraint = GrammarConstraint(compilation)
    assert follow(constraint, '"abc') == 4
    for _ in range(MAX_STATES):  # each character needs a lexer state, though no mask is computed
        constraint.advance(ord("a"))
    assert not bits(constraint).any()
    assert "cannot be followed" in str(constraint.error)
