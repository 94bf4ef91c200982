"""A grammar that constrains the next token of a sequence.

A mask takes some 20 to 100 us, beside the engine's thread (`mask_threads.py`). A grammar whose
masks take much longer ends its own request.

Knows: the library's matcher. Does not know: how grammars come (`grammars.py`), or rows.
"""

from __future__ import annotations

import time

import numpy as np
from llguidance import LLMatcher

from engine.errors import ConstraintUnsatisfied, EngineError
from engine.grammars.compilation import Compilation, first_line
from engine.grammars.limits import MASK_S
from engine.grammars.vocabulary import WORD_BITS
from engine.sequences.token_constraint import Bitmask, TokenConstraint


class GrammarConstraint(TokenConstraint):
    """The state of one sequence in a grammar."""

    def __init__(self, compilation: Compilation, flow: str = "", mask_s: float = MASK_S) -> None:
        """Constrain by a compilation; a mask that takes over `mask_s` seconds is the last one."""
        self.flow = flow
        self._compilation = compilation
        compilation.users.add(self)
        self._mask_s = mask_s
        self._matcher: LLMatcher | None = None  # made at the first use
        self._words = np.zeros(0, np.int32)  # buffer for all its masks
        self._address = 0  # address of the buffer
        self._mask: Bitmask | None = None  # mask of the next token, once made
        self._error: EngineError | None = None

    @property
    def is_ready(self) -> bool:
        """True if the grammar is compiled."""
        return self._compilation.grammar is not None

    @property
    def has_mask(self) -> bool:
        """True if the next token's mask is made."""
        return self._mask is not None

    @property
    def is_over(self) -> bool:
        """True if the grammar is complete: only an end of sequence may follow."""
        matcher = self._matcher
        return matcher is not None and matcher.is_stopped() and not matcher.is_error()

    @property
    def error(self) -> EngineError | None:
        """Reason why the sequence cannot continue, or None."""
        return self._error or self._compilation.error

    def allowed(self) -> Bitmask:
        """Return the mask of allowed next tokens, with ends of sequence at a possible end.

        Valid until `advance`: the next mask is written over it.
        """
        if self._mask is None:
            self._mask = self._next_mask()
        return self._mask

    def advance(self, token_id: int) -> None:
        """Advance by an allowed token of the sequence."""
        self._mask = None
        self._own().consume_token(token_id)

    def _own(self) -> LLMatcher:
        if self._matcher is None:
            assert self._compilation.grammar is not None
            self._matcher = self._compilation.grammar.matcher.deep_copy()
            num_tokens = self._compilation.grammar.vocabulary.tokens.vocab_size
            self._words = np.zeros(-(-num_tokens // WORD_BITS), np.int32)
            self._address = self._words.ctypes.data
        return self._matcher

    def _next_mask(self) -> Bitmask:
        """Compute the next mask, mostly without Python's lock, so that other masks run."""
        matcher, words = self._own(), self._words
        began = time.thread_time()
        matcher.unsafe_compute_mask_ptr(self._address, words.nbytes)
        took = time.thread_time() - began
        self._compilation.masks_s += took
        if matcher.is_error():
            self._compilation.is_broken = True
            self._error = ConstraintUnsatisfied(
                f"the grammar cannot be followed here: {first_line(matcher.get_error())}"
            )
        elif took > self._mask_s:
            self._error = ConstraintUnsatisfied("the grammar takes too long for each token")
        if self._error is not None:
            words[:] = 0
        assert self._compilation.grammar is not None
        return words[: self._compilation.grammar.vocabulary.num_words]
