"""What is left of a tenant's rates after a request: numbers that a dialect puts into headers.

Knows: rates, what is left of them, when they are whole again. Does not know: headers.
"""

from __future__ import annotations

import msgspec


class Allowance(msgspec.Struct, frozen=True):
    """One rate: its limit a minute, what may come at once now, seconds until all of it is back."""

    limit: int
    remaining: int
    reset_s: float


class Standing(msgspec.Struct, frozen=True):
    """The rates that a tenant has; None where there is none."""

    requests: Allowance | None = None
    tokens: Allowance | None = None
