"""Constraints on the next token that a test can state in one line."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from engine.link.messages import SamplingParams
from engine.sequences.token_constraint import Bitmask, Drafts, TokenConstraint, WantedMasks

WORD = 32


def bitmask(allowed: Collection[int], vocab_size: int) -> Bitmask:
    """Return a mask that allows these tokens."""
    bits = np.zeros(-(-vocab_size // WORD) * WORD, np.bool_)
    bits[list(allowed)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)


class Allows(TokenConstraint):
    """A constraint that allows the same tokens at each position, but at most `most` tokens."""

    def __init__(self, tokens: Collection[int], vocab_size: int, most: int | None = None) -> None:
        self.told: list[int] = []
        self._allowed = bitmask(tokens, vocab_size)
        self._most = most

    def allowed(self) -> Bitmask:
        is_over = self._most is not None and len(self.told) >= self._most
        return np.zeros_like(self._allowed) if is_over else self._allowed

    def advance(self, token_id: int) -> None:
        self.told.append(token_id)


class Script(TokenConstraint):
    """A constraint with a set of allowed tokens for each position. It ends after the last set.

    This constraint also makes masks for positions after drafts, at most `most` at a time.
    """

    def __init__(self, script: Sequence[Collection[int]], vocab_size: int, most: int = 99) -> None:
        self.told: list[int] = []
        self._script = script
        self._vocab_size = vocab_size
        self._most = most

    @property
    def is_over(self) -> bool:
        return len(self.told) >= len(self._script)

    def allowed(self) -> Bitmask:
        return self.allowed_after(())[0]

    def allowed_after(self, drafts: Drafts) -> tuple[Bitmask, ...]:
        if self.is_busy:
            raise AssertionError("it is asked while its mask is being made")
        left = self._script[len(self.told) :]
        agreeing = takewhile(lambda pair: pair[0] in pair[1], zip(drafts, left, strict=False))
        count = min(1 + sum(1 for _ in agreeing), self._most)
        return tuple(bitmask(allowed, self._vocab_size) for allowed in left[:count])

    def forced(self) -> Drafts:
        left = self._script[len(self.told) :]
        return tuple(min(one) for one in takewhile(lambda one: len(one) == 1, left))

    def advance(self, token_id: int) -> None:
        if token_id not in self._script[len(self.told)]:
            raise AssertionError(f"{token_id} was not allowed after {self.told}")
        self.told.append(token_id)


class LateScript(Script):
    """A script that advances only when the next mask is requested."""

    def __init__(self, script: Sequence[Collection[int]], vocab_size: int, end: int) -> None:
        """Allow the sets of `script` in turn, and only the token `end` after the last set."""
        super().__init__(script, vocab_size)
        self._behind: list[int] = []
        self._end = bitmask([end], vocab_size)

    @property
    def is_behind(self) -> bool:
        return bool(self._behind)

    @property
    def is_over(self) -> bool:
        return not self.is_behind and super().is_over

    def allowed_after(self, drafts: Drafts) -> tuple[Bitmask, ...]:
        self.told += self._behind
        self._behind.clear()
        return (self._end,) if self.is_over else super().allowed_after(drafts)

    def advance(self, token_id: int) -> None:
        self._behind.append(token_id)


def all_but(token_id: int, vocab_size: int) -> set[int]:
    """Return all token ids of a vocabulary except `token_id`."""
    return set(range(vocab_size)) - {token_id}


class Steps(TokenConstraint):
    """A constraint that allows every third token id; the tokens so far decide the first allowed id.

    A mask that was made one token too early, or for another sequence, therefore allows other
    tokens.
    """

    def __init__(self, vocab_size: int, most_ahead: int = 0) -> None:
        """Create a constraint that makes masks for at most `most_ahead` drafted tokens."""
        self.told: list[int] = []
        self.made_for: int | None = None  # number of generated tokens when the mask was made
        self._vocab_size = vocab_size
        self._most_ahead = most_ahead

    @property
    def has_mask(self) -> bool:
        return self.made_for == len(self.told)

    def allowed(self) -> Bitmask:
        if self.is_busy:
            raise AssertionError("it is asked while its mask is being made")
        return bitmask(steps_allow(self.told, self._vocab_size), self._vocab_size)

    def allowed_after(self, drafts: Drafts) -> tuple[Bitmask, ...]:
        masks, told = [self.allowed()], [*self.told]
        for draft in drafts[: self._most_ahead]:
            if draft not in steps_allow(told, self._vocab_size):
                break
            told.append(draft)
            masks.append(bitmask(steps_allow(told, self._vocab_size), self._vocab_size))
        return tuple(masks)

    def advance(self, token_id: int) -> None:
        if self.is_busy:
            raise AssertionError("it is told a token while its mask is being made")
        if token_id not in steps_allow(self.told, self._vocab_size):
            raise AssertionError(f"{token_id} was not allowed after {self.told}")
        self.told.append(token_id)


def steps_allow(told: Collection[int], vocab_size: int) -> range:
    """Return the tokens that `Steps` allows after these tokens."""
    return range((sum(told) + len(told)) % 3, vocab_size, 3)


def steps_of(sampling: SamplingParams, flow: str) -> Steps | None:
    """Return `Steps` over the fake runner's 64 tokens for a request with a grammar, else None."""
    del flow
    return None if sampling.grammar is None else Steps(64)


@dataclass
class HeldMasks:
    """A `MaskMaker` that holds back the masks of some constraints until `release`."""

    events: list[str] = field(default_factory=list)
    # masks of constraints with one of these numbers of tokens are held back
    held: set[int] = field(default_factory=set)
    busy: list[Steps] = field(default_factory=list)
    num_made: int = 0
    # seconds that each step would have waited for masks
    patience: list[float] = field(default_factory=list)

    def make(self, wanted: Iterable[WantedMasks]) -> HeldMasks:
        self.events.append("make")
        for one, _ in wanted:
            self.num_made += 1
            if isinstance(one, Steps) and len(one.told) in self.held and not one.is_busy:
                one.is_busy = True
                self.busy.append(one)
        return self

    def wait(self, seconds: float) -> None:
        self.events.append("made")
        self.patience.append(seconds)

    def release(self) -> None:
        """Make the masks that were held back."""
        for one in self.busy:
            one.is_busy, one.made_for = False, len(one.told)
        self.busy, self.held = [], set()
