"""Random answers that follow their requests' grammars, like answers of a constrained model.

A walk takes any allowed token, but prefers control tokens and end tokens, so that it comes to an
end.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidGrammar
from engine.grammars.check import checked
from engine.grammars.compilation import Compilation, compiled
from engine.grammars.token_mask import GrammarConstraint
from engine.grammars.vocabulary import Vocabulary
from engine.link.messages import Generate, Grammar

# probabilities of taking an allowed end token, or an allowed control token
_ENDS, _MARKS = 0.5, 0.7
# numbers of a text's tokens: random ones at first, and all at most
_NUM_AT_RANDOM, _MOST = 12, 2000
_CLOSE, _GO_ON = (*';)}]"\n', "*/"), (*' 1a({<=*/."',)  # texts that are single tokens


class Walker:
    """A script of `FakeEngine`, which writes at random under the request's grammar."""

    def __init__(self, vocabulary: Vocabulary, marks: list[int]) -> None:
        ends = list(vocabulary.eos_token_ids)
        self._vocabulary = vocabulary
        self._ends = np.array(ends)
        self._marks = np.array([mark for mark in marks if mark not in ends])
        self._random = random.Random(0)

    def __call__(self, request: Generate) -> list[int]:
        """Return the tokens of an answer, without its end token."""
        grammar = request.sampling.grammar
        assert grammar is not None, "a grammar was to hold this answer"
        return self.walk(grammar, request.sampling.max_tokens)

    def walk(self, grammar: Grammar, most: int) -> list[int]:
        """Return at most `most` tokens that the grammar allows."""
        found = checked(grammar)
        if found.error:
            raise InvalidGrammar(found.error)
        constraint = GrammarConstraint(Compilation(compiled(found.text, self._vocabulary)))
        said: list[int] = []
        while not constraint.is_over and len(said) < most:
            token = self._next(constraint)
            if token is None:
                break
            said.append(token)
            constraint.advance(token)
        return said

    def _next(self, constraint: GrammarConstraint) -> int | None:
        """Return a random allowed token; None for the end."""
        bits = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")
        assert constraint.error is None
        if bits[self._ends].any() and self._random.random() < _ENDS:
            return None
        bits[self._ends] = 0
        marks = self._marks[bits[self._marks] > 0]
        allowed = marks if len(marks) and self._random.random() < _MARKS else np.flatnonzero(bits)
        return int(self._random.choice(allowed)) if len(allowed) else None


def _allowed_of(
    letters: Sequence[str], vocabulary: Vocabulary, bits: npt.NDArray[np.uint8]
) -> list[int]:
    return [one for (one,) in map(vocabulary.tokens.tokenize_str, letters) if bits[one]]


def walked(
    compilation: Compilation,
    vocabulary: Vocabulary,
    end: int,
    seed: int,
    close: Sequence[str] = _CLOSE,
) -> str:
    """Return a text that the grammar allows: some random tokens, then tokens that lead to its end.

    `end` is the end token; `close` are one-token texts that lead to the end.
    """
    chance, constraint, said = random.Random(seed), GrammarConstraint(compilation), list[int]()
    while not constraint.is_over and len(said) < _MOST:
        bits = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")
        assert constraint.error is None
        if bits[end] and (len(said) >= _NUM_AT_RANDOM or chance.random() < 0.1):
            break
        bits[end] = 0
        allowed = np.flatnonzero(bits)
        if len(said) >= _NUM_AT_RANDOM:
            letters = close if chance.random() < 0.7 else _GO_ON
            few = _allowed_of(letters, vocabulary, bits) or _allowed_of(_GO_ON, vocabulary, bits)
            allowed = np.array(few) if few else allowed
        said.append(int(chance.choice(allowed)))
        constraint.advance(said[-1])
    assert len(said) < _MOST, vocabulary.tokens.decode_str(said)
    return vocabulary.tokens.decode_bytes(said).decode()
