"""A grammar that constrains the next token of a sequence.

A mask takes about 20 to 100 us, in a thread other than the engine's. If a grammar's masks take much
longer, its request is ended, and likewise if following its tokens takes much longer. The engine's
thread follows a token immediately if the flow has time left in the step (`step_time.py`). If not,
the token is followed before the next mask is made.

The masks after drafts are made by a copy of the matcher. Copying takes about 3 us. Rolling back the
matcher instead could give a wrong mask: llguidance (1.9) then returns a cached mask of another
position. Errors of a copy affect only the copy, but an error of the lexer affects all copies. The
lexer has too many states after a long text. Each sequence then follows its tokens again in a newly
compiled grammar.

Elsewhere: how grammars are compiled (`grammars.py`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile

import numpy as np
from llguidance import LLMatcher

from engine.errors import ConstraintUnsatisfied, EngineError, InvalidGrammar
from engine.grammars.compilation import Compilation, CompiledGrammar, first_line
from engine.grammars.limits import (
    AHEAD_S,
    FOLLOWED_AT_ONCE,
    LEAST_SHARE_BETWEEN,
    LEAST_SHARE_S,
    LEAST_TOKENS_BETWEEN,
    LONGEST_S,
    MASK_S,
    MOST_FORCED,
    MOST_LONG,
)
from engine.grammars.step_time import StepTime
from engine.grammars.vocabulary import WORD_BITS
from engine.sequences.token_constraint import Bitmask, Drafts, TokenConstraint

_OF_LEXER = "lexer error"  # part of the message if all copies of a matcher share the error
FADES = 0.9  # factor that decays the remembered maximum time at each call


class GrammarConstraint(TokenConstraint):
    """The progress of one sequence in its grammar, from which its next tokens' masks are made."""

    def __init__(
        self,
        compilation: Compilation,
        flow: str = "",
        mask_s: float = MASK_S,
        ahead_s: float = AHEAD_S,
        step_time: StepTime | None = None,
    ) -> None:
        """Constrain a sequence by a compiled grammar.

        If a mask takes longer than `mask_s` processor seconds, the request fails. After `ahead_s`
        seconds, no further mask after a draft is begun. Without `step_time`, the time within a step
        is not limited.
        """
        self.flow = flow
        self._compilation = compilation
        compilation.users.add(self)
        self._mask_s = mask_s
        self._ahead_s = ahead_s
        self._matcher: LLMatcher | None = None
        self._copied: CompiledGrammar | None = None  # the grammar that `_matcher` is a copy of
        self._tokens: list[int] = []  # all tokens of the sequence
        self._renewed_at = -LEAST_TOKENS_BETWEEN
        self._words = np.zeros((0, 0), np.int32)  # buffer of all masks, one row each
        self._address = 0
        self._masks: tuple[Bitmask, ...] = ()
        self._drafts: Drafts = ()
        self._time = step_time
        self._behind = deque[int]()
        self._num_long = 0
        self._forced = deque[int]()  # forced next tokens, if they were searched for
        self._error: EngineError | None = None

    @property
    def is_ready(self) -> bool:
        """True if the grammar is compiled."""
        return self._compilation.grammar is not None

    @property
    def has_mask(self) -> bool:
        """True if the next token's mask has been made."""
        return bool(self._masks)

    @property
    def is_over(self) -> bool:
        """True if the grammar is complete, so that only an end of sequence may follow."""
        matcher = self._matcher
        if matcher is None or self._behind:
            return False
        return matcher.is_stopped() and not matcher.is_error()

    @property
    def is_behind(self) -> bool:
        """True if tokens wait to be followed, because the flow had no time left in the step."""
        return bool(self._behind)

    @property
    def error(self) -> EngineError | None:
        """The error that stops the sequence, or None."""
        return self._error or self._compilation.error

    def allowed(self) -> Bitmask:
        """Return the mask of allowed next tokens.

        Where the grammar may end, the tokens that end a sequence are allowed too.

        The mask is valid until `advance`, because the next mask overwrites it.
        """
        return self.allowed_after(())[0]

    def allowed_after(self, drafts: Drafts) -> tuple[Bitmask, ...]:
        """Return the mask of the next token, then the available masks after each of `drafts`.

        If no masks have been made yet, this call makes them, within about `ahead_s` seconds.
        """
        if not self._masks:
            self.catch_up()
            self._grow(1 + len(drafts))
            first = self._first_mask()
            self._masks = (first, *self._masks_after(first, drafts))
            self._drafts = drafts[: len(self._masks) - 1]
        pairs = zip(drafts, self._drafts, strict=False)
        fitting = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return self._masks[: 1 + fitting]

    def forced(self) -> Drafts:
        """Return the next tokens that the grammar forces, or () if their tokenization is ambiguous.

        The call takes 1 to 2 us if no token is forced, else about 20 to 40 us. Tokens that were
        found are kept for later calls. If the flow has no time left in the step, no search is made.
        """
        if not (self._forced or self._behind) and self._may_find():
            self._forced = self._find_forced()
        return tuple(self._forced)

    def advance(self, token_id: int) -> None:
        """Advance by an allowed token of the sequence."""
        self._masks = ()
        self._tokens.append(token_id)
        if self._forced and self._forced.popleft() != token_id:
            self._forced.clear()
        if self._behind or not self._may_follow():
            self._behind.append(token_id)
            return
        compilation = self._compilation
        clock = time.thread_time if compilation.is_slow else time.perf_counter
        began = clock()
        self._own().consume_token(token_id)
        took = clock() - began
        # Without `is_slow`, the wall clock was used, so the measured time may include waiting.
        if took > LEAST_SHARE_S and not compilation.is_slow:
            compilation.is_slow, took = True, LEAST_SHARE_S
        self._followed(took)

    def catch_up(self) -> float:
        """Follow the waiting tokens. Return the processor seconds that this took."""
        took = 0.0
        while self._behind and self._error is None:
            began = time.thread_time()
            self._own().consume_token(self._behind.popleft())
            one = time.thread_time() - began
            self._followed(one, is_late=True)
            self._compilation.masks_s += one
            self._num_long = self._num_long + 1 if one > LONGEST_S else 0
            if self._num_long == MOST_LONG:
                self._error = _too_long()
            took += one
        return took

    def _may_follow(self) -> bool:
        return self._time is None or self._time.may(self.flow, self._compilation.token_s)

    def _followed(self, took: float, *, is_late: bool = False) -> None:
        self._compilation.token_s = max(took, FADES * self._compilation.token_s)
        if self._time is not None:
            self._time.spend(self.flow, took, is_late=is_late)

    def _may_find(self) -> bool:
        return self._time is None or self._time.may_draft(self.flow, self._compilation.forced_s)

    def _find_forced(self) -> deque[int]:
        began, matcher = time.thread_time(), self._own()
        found = () if matcher.is_stopped() else matcher.compute_ff_tokens()
        took = time.thread_time() - began
        self._compilation.forced_s = max(took, self._compilation.forced_s)
        self._compilation.masks_s += took
        if self._time is not None:
            self._time.spend(self.flow, took)
        return deque(found[:MOST_FORCED])

    def _own(self) -> LLMatcher:
        if self._matcher is None:
            assert self._compilation.grammar is not None
            self._copied = self._compilation.grammar
            self._matcher = self._copied.matcher.deep_copy()
        return self._matcher

    def _renew(self) -> None:
        """Follow all tokens of the sequence again, in a newly compiled grammar.

        Do nothing if this was already done a few tokens ago. Raises InvalidGrammar.
        """
        began, count = time.thread_time(), len(self._tokens)
        least = max(LEAST_TOKENS_BETWEEN, count * LEAST_SHARE_BETWEEN)
        if self._copied is None or count - self._renewed_at < least:
            return
        self._copied, self._renewed_at = self._compilation.renew(self._copied), count
        self._matcher = self._copied.matcher.deep_copy()
        for start in range(0, count, FOLLOWED_AT_ONCE):
            self._matcher.consume_tokens(self._tokens[start : start + FOLLOWED_AT_ONCE])
        self._compilation.masks_s += time.thread_time() - began

    def _grow(self, num_masks: int) -> None:
        if len(self._words) < num_masks:
            assert self._compilation.grammar is not None
            num_tokens = self._compilation.grammar.vocabulary.tokens.vocab_size
            self._words = np.zeros((num_masks, -(-num_tokens // WORD_BITS)), np.int32)
            self._address = self._words.ctypes.data

    def _first_mask(self) -> Bitmask:
        if self._error is None:
            took = self._write_mask(self._own(), 0)
            if _OF_LEXER in self._own().get_error():
                took = self._write_again()
            if self._own().is_error():
                self._error = ConstraintUnsatisfied(
                    f"the grammar cannot be followed here: {first_line(self._own().get_error())}"
                )
            elif took > self._mask_s:
                self._error = _too_long()
        if self._error is not None:
            self._words[0] = 0
        return self._mask(0)

    def _write_again(self) -> float:
        with suppress(InvalidGrammar):  # the old matcher then reports its own error
            self._renew()
        return self._write_mask(self._own(), 0)

    def _masks_after(self, before: Bitmask, drafts: Drafts) -> Iterator[Bitmask]:
        if not drafts or self._error is not None:
            return
        copied = began = time.thread_time()
        matcher = self._own().deep_copy()
        for number, draft in enumerate(drafts, 1):
            is_late = number > 1 and copied - began > self._ahead_s
            if is_late or not (_allows(before, draft) and self._may_follow()):
                return
            is_followed = matcher.consume_token(draft)
            self._followed(time.thread_time() - copied)
            if not is_followed or matcher.is_stopped():
                return
            self._write_mask(matcher, number)
            if matcher.is_error():
                return
            yield (before := self._mask(number))
            copied = time.thread_time()

    def _write_mask(self, matcher: LLMatcher, number: int) -> float:
        """Compute a mask. Python's lock is mostly released. Return the processor seconds."""
        num_bytes = self._words.strides[0]
        began = time.thread_time()
        matcher.unsafe_compute_mask_ptr(self._address + number * num_bytes, num_bytes)
        took = time.thread_time() - began
        self._compilation.masks_s += took
        if matcher.is_error():
            self._compilation.is_broken = True
        return took

    def _mask(self, number: int) -> Bitmask:
        assert self._compilation.grammar is not None
        return self._words[number, : self._compilation.grammar.vocabulary.num_words]


def _too_long() -> ConstraintUnsatisfied:
    return ConstraintUnsatisfied("the grammar takes too long for each token")


def _allows(mask: Bitmask, token_id: int) -> bool:
    word, bit = divmod(token_id, WORD_BITS)
    return 0 <= word < len(mask) and bool(int(mask[word]) >> bit & 1)
