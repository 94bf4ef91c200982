"""The flags of `gateway.limits.prices.Prices`: what tokens cost tenants with a budget.

Knows: one flag for every price. Does not know: what a unit is; that is the operator's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from cli.options import flag
from gateway.limits.prices import MAX_PRICE, Prices

PANEL = "Prices, for budgets"
_DEFAULTS = Prices()


def price(name: str, help_text: str) -> Any:
    """A price in units for a million tokens."""
    return flag(name, help_text, panel=PANEL, min=0.0, max=MAX_PRICE)


@dataclass(frozen=True, slots=True)
class PriceFlags:
    """Units of a budget for a million tokens: `Prices`, each field behind `price_`."""

    price_computed: Annotated[
        float, price("--price-computed", "Units for a million prompt tokens that were computed.")
    ] = _DEFAULTS.computed
    price_cached: Annotated[
        float,
        price(
            "--price-cached",
            "Units for a million prompt tokens from the cache; at most --price-computed.",
        ),
    ] = _DEFAULTS.cached
    price_generated: Annotated[
        float, price("--price-generated", "Units for a million generated tokens.")
    ] = _DEFAULTS.generated
