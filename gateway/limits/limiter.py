"""The protocol of a limiter, and what goes in and out of it.

    reserve(demand) -> Granted(hold) | Refused        before the work, over all limits or none
    settle(hold, used)                                once, after it, however it ended
    renew(holds)                                      while it lasts, before HOLD_S are over

A hold that is neither settled nor renewed lapses: a gateway that was killed gives its requests
and tokens back. The budget counts a lapsed hold whole, since nobody knows what was computed and
a budget is a promise.

Homes: `memory` (this process), `sqlite` (this machine), `redis` (several). One contract suite.

Knows: types. Does not know: HTTP, or what a token costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from gateway.limits.limits import Limits
from gateway.limits.standing import Standing

HOLD_S = 60.0

Reason = Literal["requests", "tokens", "concurrent", "budget"]


class Amount(msgspec.Struct, frozen=True):
    """What a request may use or has used: tokens worked on, and their cost in micro-units."""

    tokens: int = 0
    cost: int = 0


class Demand(msgspec.Struct, frozen=True):
    """One request that would begin. `id` is unique among all that were ever made."""

    id: str
    tenant_id: str
    limits: Limits
    most: Amount


class Hold(msgspec.Struct, frozen=True):
    """What was reserved. `epoch` names the memory that it is in: a home that was emptied has
    another."""

    demand: Demand
    epoch: str = ""


class Granted(msgspec.Struct, frozen=True):
    """The request may run."""

    hold: Hold
    standing: Standing


class Refused(msgspec.Struct, frozen=True):
    """The request may not run now. `retry_after_s` None: waiting does not help, or not soon."""

    reason: Reason
    standing: Standing
    retry_after_s: float | None


Verdict = Granted | Refused


class LimiterDown(Exception):
    """The home does not answer, or not in time, or cannot write."""


class Limiter(Protocol):
    """Holds tenants to their limits. Call it from any task of one event loop."""

    async def reserve(self, demand: Demand) -> Verdict:
        """Take `demand.most` from every limit that the tenant has, or nothing. LimiterDown."""
        ...

    async def settle(self, hold: Hold, used: Amount) -> None:
        """Give the hold back and count what was used. LimiterDown."""
        ...

    async def renew(self, holds: Sequence[Hold]) -> None:
        """Let holds last for HOLD_S from now; lapsed ones stay lapsed. LimiterDown."""
        ...

    async def close(self) -> None:
        """Give back what the limiter holds open."""
        ...
