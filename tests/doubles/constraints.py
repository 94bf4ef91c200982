"""Constraints on the next token that a test can state in a line."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from engine.link.messages import SamplingParams
from engine.sequences.token_constraint import Bitmask, TokenConstraint

WORD = 32


def bitmask(allowed: Collection[int], vocab_size: int) -> Bitmask:
    """The bits of some tokens."""
    bits = np.zeros(-(-vocab_size // WORD) * WORD, np.bool_)
    bits[list(allowed)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)


class Allows(TokenConstraint):
    """The same tokens each time; and none at all once `most` were generated."""

    def __init__(self, tokens: Collection[int], vocab_size: int, most: int | None = None) -> None:
        self.told: list[int] = []
        self._allowed = bitmask(tokens, vocab_size)
        self._most = most

    def allowed(self) -> Bitmask:
        is_over = self._most is not None and len(self.told) >= self._most
        return np.zeros_like(self._allowed) if is_over else self._allowed

    def advance(self, token_id: int) -> None:
        self.told.append(token_id)


def all_but(token_id: int, vocab_size: int) -> set[int]:
    """The tokens of a vocabulary but one."""
    return set(range(vocab_size)) - {token_id}


class Steps(TokenConstraint):
    """Every third token, from one on that all tokens so far decide: a mask that is made one token
    too early, or of another sequence, allows others."""

    def __init__(self, vocab_size: int) -> None:
        self.told: list[int] = []
        self.made_for: int | None = None  # how many tokens it had when its mask was made
        self._vocab_size = vocab_size

    @property
    def has_mask(self) -> bool:
        return self.made_for == len(self.told)

    def allowed(self) -> Bitmask:
        if self.is_busy:
            raise AssertionError("it is asked while its mask is being made")
        return bitmask(steps_allow(self.told, self._vocab_size), self._vocab_size)

    def advance(self, token_id: int) -> None:
        if self.is_busy:
            raise AssertionError("it is told a token while its mask is being made")
        if token_id not in steps_allow(self.told, self._vocab_size):
            raise AssertionError(f"{token_id} was not allowed after {self.told}")
        self.told.append(token_id)


def steps_allow(told: Collection[int], vocab_size: int) -> range:
    """What `Steps` allows after these tokens."""
    return range((sum(told) + len(told)) % 3, vocab_size, 3)


def steps_of(sampling: SamplingParams, flow: str) -> Steps | None:
    """`Steps` for whoever has a grammar, among the 64 tokens of the fake runner."""
    del flow
    return None if sampling.grammar is None else Steps(64)


@dataclass
class HeldMasks:
    """A `MaskMaker` that makes no mask of some constraints before it is told to."""

    events: list[str] = field(default_factory=list)
    held: set[int] = field(default_factory=set)  # how many tokens a constraint has whose mask waits
    busy: list[Steps] = field(default_factory=list)
    num_made: int = 0
    patience: list[float] = field(default_factory=list)  # seconds that each step would have waited

    def make(self, constraints: Iterable[TokenConstraint]) -> HeldMasks:
        self.events.append("make")
        for one in constraints:
            self.num_made += 1
            if isinstance(one, Steps) and len(one.told) in self.held and not one.is_busy:
                one.is_busy = True
                self.busy.append(one)
        return self

    def wait(self, seconds: float) -> None:
        self.events.append("made")
        self.patience.append(seconds)

    def release(self) -> None:
        """The masks that were held are there."""
        for one in self.busy:
            one.is_busy, one.made_for = False, len(one.told)
        self.busy, self.held = [], set()
