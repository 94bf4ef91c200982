"""Constraints on the next token that a test can state in a line."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from engine.scheduling.token_constraint import Bitmask, TokenConstraint

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
