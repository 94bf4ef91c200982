"""A grammar over a model's tokens, as the library compiles it.

Knows: the library's matcher. Does not know: sequences, threads.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from llguidance import LLMatcher

from engine.errors import EngineError, InvalidGrammar
from engine.grammars.limits import MASK_S, parser_limits
from engine.grammars.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar at its start, with its first mask made: sequences get copies of it."""

    matcher: LLMatcher
    vocabulary: Vocabulary


@dataclass(slots=True)
class Compilation:
    """What comes of a grammar; a thread that compiles it sets one or the other, once."""

    grammar: CompiledGrammar | None = None
    error: EngineError | None = None

    @property
    def is_done(self) -> bool:
        """Whether it compiled or failed."""
        return self.grammar is not None or self.error is not None


def compiled(text: str, vocabulary: Vocabulary) -> CompiledGrammar:
    """Compile what was prepared; raises InvalidGrammar."""
    matcher = LLMatcher(vocabulary.tokens, text, log_level=0, limits=parser_limits())
    began = time.thread_time()
    matcher.compute_bitmask()
    if matcher.is_error():
        raise InvalidGrammar(first_line(matcher.get_error()))
    if time.thread_time() - began > MASK_S:
        raise InvalidGrammar("it is too large: each token would take too long")
    return CompiledGrammar(matcher, vocabulary)


def first_line(message: str) -> str:
    """The library's message without what it quotes."""
    return message.split("\n")[0][:300]
