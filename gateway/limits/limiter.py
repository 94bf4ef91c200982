"""The protocol of a limiter, and what goes in and out of it.

    reserve(demand) -> Granted(hold) | Refused        before the work; from all limits or none
    settle(hold, used)                                once after the work, however it ended
    renew(holds)                                      during the work, before HOLD_S have passed

A hold that is neither settled nor renewed lapses, so the requests and tokens of a killed gateway
are given back. The budget counts a lapsed hold in full, because nobody knows what was computed
and a budget is a promise.

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
    """What a request may use or has used: computed and generated tokens; cost in micro-units."""

    tokens: int = 0
    cost: int = 0


class Demand(msgspec.Struct, frozen=True):
    """A request that wants to begin. `id` is unique among all there ever were."""

    id: str
    tenant_id: str
    limits: Limits
    most: Amount


class Hold(msgspec.Struct, frozen=True):
    """What was reserved. `epoch` changes when the place that remembers it was emptied."""

    demand: Demand
    epoch: str = ""


class Granted(msgspec.Struct, frozen=True):
    """The request may run."""

    hold: Hold
    standing: Standing


class Refused(msgspec.Struct, frozen=True):
    """The request may not run. `retry_after_s` is None if waiting does not help, or not soon."""

    reason: Reason
    standing: Standing
    retry_after_s: float | None


Verdict = Granted | Refused


class LimiterDown(Exception):
    """The limiter's storage does not answer in time, or cannot write."""


class Limiter(Protocol):
    """Holds tenants to their limits. Call it from any task of one event loop."""

    async def reserve(self, demand: Demand) -> Verdict:
        """Reserve `demand.most` of every limit of the tenant, or nothing; raises LimiterDown."""
        ...

    async def settle(self, hold: Hold, used: Amount) -> None:
        """Release the hold and count what was used; raises LimiterDown."""
        ...

    async def renew(self, holds: Sequence[Hold]) -> None:
        """Extend holds to HOLD_S from now; lapsed ones stay lapsed; raises LimiterDown."""
        ...

    async def close(self) -> None:
        """Close files and connections."""
        ...
