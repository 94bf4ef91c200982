"""Where a tenant stands with its limits after a request: numbers, for any dialect to spell.

Knows: limits, what is left, when it is whole again. Does not know: headers.
"""

from __future__ import annotations

import msgspec


class Allowance(msgspec.Struct, frozen=True):
    """One rate: a minute's worth, what could come at once now, seconds until nothing is used."""

    limit: int
    remaining: int
    reset_s: float


class Standing(msgspec.Struct, frozen=True):
    """The rates that a tenant has; None where there is none."""

    requests: Allowance | None = None
    tokens: Allowance | None = None
