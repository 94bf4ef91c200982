"""A grammar that llguidance has compiled over a model's vocabulary."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from weakref import WeakSet

from llguidance import LLMatcher

from engine.errors import EngineError, InvalidGrammar, error_from_code
from engine.grammars.limits import (
    GROWTH_BYTES_PER_S,
    LEAST_BYTES,
    MASK_S,
    MAX_BYTES,
    REFUSED_BYTES,
    parser_limits,
)
from engine.grammars.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A compiled grammar, with its first mask and a matcher that each sequence copies.

    All copies share the lexer's automaton, which grows while tokens are followed. They also share
    an error of the lexer, which is permanent.
    """

    matcher: LLMatcher
    vocabulary: Vocabulary
    text: str  # the grammar's source


@dataclass(slots=True, eq=False)
class Compilation:
    """The outcome of compiling a grammar.

    The compiling thread sets the compiled grammar or the error. A sequence that gets an error from
    the lexer may replace the compiled grammar (`renew`).
    """

    grammar: CompiledGrammar | None = None
    failure: tuple[str, str] | None = None
    compiled_bytes: int = 0  # memory of the compiled grammar as the check measured it
    # Processor seconds spent on masks; approximate, because threads add without a lock.
    masks_s: float = 0.0
    is_slow: bool = False  # True once following a token took long; then every call is timed exactly
    token_s: float = 0.0  # expected seconds in which a token is followed
    forced_s: float = 0.0
    is_broken: bool = False  # True after an error that later copies of the matcher may repeat
    users: WeakSet[object] = field(default_factory=WeakSet)

    @property
    def is_done(self) -> bool:
        """True if the compilation succeeded or failed."""
        return self.grammar is not None or self.failure is not None

    @property
    def error(self) -> EngineError | None:
        """The error of an unusable grammar, else None.

        Each call makes a new error. A raised error keeps references to stack frames, and so to the
        grammar's text.
        """
        return None if self.failure is None else error_from_code(*self.failure)

    def fail(self, error: EngineError) -> None:
        """Store the error's code and message."""
        self.failure = error.code, error.message

    def renew(self, broken: CompiledGrammar) -> CompiledGrammar:
        """Compile the grammar again if `broken` is still its result, and return the current result.

        `broken` has an error of the lexer. Raises InvalidGrammar.
        """
        if self.grammar is broken:
            self.grammar = compiled(broken.text, broken.vocabulary)
            self.masks_s, self.is_broken = 0.0, False
        assert self.grammar is not None
        return self.grammar

    @property
    def num_bytes(self) -> int:
        """The estimated memory of the grammar, in bytes. It is an upper bound."""
        if self.failure is not None:
            return REFUSED_BYTES
        grown = int(self.masks_s * GROWTH_BYTES_PER_S)
        return max(self.compiled_bytes, LEAST_BYTES) + grown

    @property
    def is_worn(self) -> bool:
        """True if the next request must compile the grammar again."""
        return self.is_broken or self.num_bytes > MAX_BYTES


def compiled(text: str, vocabulary: Vocabulary) -> CompiledGrammar:
    """Compile a prepared grammar. Raises InvalidGrammar."""
    matcher = LLMatcher(vocabulary.tokens, text, log_level=0, limits=parser_limits())
    began = time.thread_time()
    matcher.compute_bitmask()
    if matcher.is_error():
        raise InvalidGrammar(first_line(matcher.get_error()))
    if time.thread_time() - began > MASK_S:
        raise InvalidGrammar("it is too large: each token would take too long")
    return CompiledGrammar(matcher, vocabulary, text)


def first_line(message: str) -> str:
    """Return the first line of llguidance's message. The later lines quote the grammar."""
    return message.split("\n")[0][:300]
