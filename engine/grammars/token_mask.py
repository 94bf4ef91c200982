"""A grammar that constrains the next token of a sequence.

A mask takes some 20 to 100 us, beside the engine's thread (`mask_threads.py`). A grammar whose
masks take much longer ends its own request. So does one whose tokens take long to follow, on the
engine's thread, once its flow has had its time there (`flow_time.py`).

Masks after drafts are made by a copy of the matcher, which takes some 3 us. A matcher that takes
tokens back would be no cheaper, and may be wrong: the library (1.9) then mistakes a mask that it
kept for that of the new place, and refuses it for grammars with `max_tokens` or `stop`. An error of
a copy's own stays in it; one of the lexer, which copies share, is a grammar's that has grown too
large, and meets all its sequences (`compilation.py`).

Knows: the library's matcher. Does not know: how grammars come (`grammars.py`), or rows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from itertools import takewhile

import numpy as np
from llguidance import LLMatcher

from engine.errors import ConstraintUnsatisfied, EngineError
from engine.grammars.compilation import Compilation, first_line
from engine.grammars.flow_time import FlowTime
from engine.grammars.limits import AHEAD_S, FREE_S, MASK_S, MOST_FORCED
from engine.grammars.vocabulary import WORD_BITS
from engine.sequences.token_constraint import Bitmask, Drafts, TokenConstraint


class GrammarConstraint(TokenConstraint):
    """The state of one sequence in a grammar."""

    def __init__(
        self,
        compilation: Compilation,
        flow: str = "",
        mask_s: float = MASK_S,
        ahead_s: float = AHEAD_S,
        time_of_flows: FlowTime | None = None,
    ) -> None:
        """Constrain by a compilation; a mask that takes over `mask_s` seconds is the last one.

        After `ahead_s` no further mask after a draft is begun. Without `time_of_flows` the
        sequence has the engine's thread for itself.
        """
        self.flow = flow
        self._compilation = compilation
        compilation.users.add(self)
        self._mask_s = mask_s
        self._ahead_s = ahead_s
        self._matcher: LLMatcher | None = None  # made at the first use
        self._words = np.zeros((0, 0), np.int32)  # buffer for all its masks, a row for each
        self._address = 0  # address of the buffer
        self._masks: tuple[Bitmask, ...] = ()  # masks of the next token, and after `_drafts`
        self._drafts: Drafts = ()
        self._time = time_of_flows or FlowTime()
        self._forced = deque[int]()  # what is forced from here, as far as it was found
        self._error: EngineError | None = None

    @property
    def is_ready(self) -> bool:
        """True if the grammar is compiled."""
        return self._compilation.grammar is not None

    @property
    def has_mask(self) -> bool:
        """True if the next token's mask is made."""
        return bool(self._masks)

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
        return self.allowed_after(())[0]

    def allowed_after(self, drafts: Drafts) -> tuple[Bitmask, ...]:
        """Return the masks of the next token and after drafts, as far as they were made.

        They are made, where none is: until `ahead_s` have passed.
        """
        if not self._masks:
            self._grow(1 + len(drafts))
            first = self._first_mask()
            self._masks = (first, *self._masks_after(first, drafts))
            self._drafts = drafts[: len(self._masks) - 1]
        pairs = zip(drafts, self._drafts, strict=False)
        fitting = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return self._masks[: 1 + fitting]

    def forced(self) -> Drafts:
        """Return next tokens that the grammar forces; none where tokenizations are ambiguous.

        Takes 1 to 2 us where nothing is forced, and some 20 to 40 us where something is; longer if
        thousands are. So they are kept, and a flow that has debts finds no more.
        """
        if not self._forced and not self._time.debt(self.flow):
            self._forced = self._find_forced()
        return tuple(self._forced)

    def advance(self, token_id: int) -> None:
        """Advance by an allowed token of the sequence."""
        self._masks = ()
        if self._forced and self._forced.popleft() != token_id:
            self._forced.clear()
        matcher, is_slow = self._own(), self._compilation.is_slow
        began = time.thread_time() if is_slow else time.perf_counter()  # which costs less
        matcher.consume_token(token_id)
        if not is_slow:
            self._compilation.is_slow = time.perf_counter() - began > FREE_S
        elif not self._spend(began):
            self._error = _too_long()

    def _find_forced(self) -> deque[int]:
        began, matcher = time.thread_time(), self._own()
        found = () if matcher.is_stopped() else matcher.compute_ff_tokens()
        self._spend(began)
        return deque(found[:MOST_FORCED])

    def _spend(self, began: float) -> bool:
        """Count a call on the engine's thread; return False where its flow owes too much."""
        took = time.thread_time() - began
        self._compilation.masks_s += took
        return self._time.spend(self.flow, took)

    def _own(self) -> LLMatcher:
        if self._matcher is None:
            assert self._compilation.grammar is not None
            self._matcher = self._compilation.grammar.matcher.deep_copy()
        return self._matcher

    def _grow(self, num_masks: int) -> None:
        """Make the buffer large enough for so many masks."""
        if len(self._words) < num_masks:
            assert self._compilation.grammar is not None
            num_tokens = self._compilation.grammar.vocabulary.tokens.vocab_size
            self._words = np.zeros((num_masks, -(-num_tokens // WORD_BITS)), np.int32)
            self._address = self._words.ctypes.data

    def _first_mask(self) -> Bitmask:
        if self._error is None:
            matcher = self._own()
            took = self._write_mask(matcher, 0)
            if matcher.is_error():
                self._error = ConstraintUnsatisfied(
                    f"the grammar cannot be followed here: {first_line(matcher.get_error())}"
                )
            elif took > self._mask_s:
                self._error = _too_long()
        if self._error is not None:
            self._words[0] = 0
        return self._mask(0)

    def _masks_after(self, before: Bitmask, drafts: Drafts) -> Iterator[Bitmask]:
        """Make masks after drafts, as long as these are allowed and time is left."""
        if not drafts or self._error is not None:
            return
        began = time.thread_time()
        matcher = self._own().deep_copy()
        for number, draft in enumerate(drafts, 1):
            is_late = number > 1 and time.thread_time() - began > self._ahead_s
            if is_late or not _allows(before, draft):
                return
            if not matcher.consume_token(draft) or matcher.is_stopped():
                return
            self._write_mask(matcher, number)
            if matcher.is_error():
                return
            yield (before := self._mask(number))

    def _write_mask(self, matcher: LLMatcher, number: int) -> float:
        """Compute a mask, mostly without Python's lock, so that other masks run; return seconds."""
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
