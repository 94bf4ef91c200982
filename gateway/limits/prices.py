"""What tokens cost, for budgets.

Knows: three prices. Does not know: what a unit is; that is the operator's business.
"""

from __future__ import annotations

import math

import msgspec

MICRO = 1_000_000  # micro-units in a unit: budgets count whole ones
MAX_PRICE = 1e6


class Tokens(msgspec.Struct, frozen=True):
    """Tokens of one request, each counted once."""

    computed: int = 0  # of the prompts
    cached: int = 0  # of the prompts
    generated: int = 0

    @property
    def worked(self) -> int:
        """Tokens that took work, which is what `tokens_per_minute` counts."""
        return self.computed + self.generated


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Units for a million tokens."""

    computed: float = 1.0
    cached: float = 0.1
    generated: float = 4.0

    def __post_init__(self) -> None:
        """Refuse what would let a reservation be less than what is settled."""
        cached_is_least = 0 <= self.cached <= self.computed <= MAX_PRICE
        if not cached_is_least or not 0 <= self.generated <= MAX_PRICE:
            raise ValueError(
                "prices must satisfy 0 <= cached <= computed <= 1e6 and 0 <= generated <= 1e6"
            )

    def cost(self, tokens: Tokens) -> int:
        """What `tokens` cost in micro-units, rounded up."""
        return math.ceil(
            self.computed * tokens.computed
            + self.cached * tokens.cached
            + self.generated * tokens.generated
        )
