"""The protocol of a limiter, and its demands, holds and verdicts.

    reserve(demand) -> Granted(hold) | Denied   before the work; from all limits or none
    reserve(demand, begun) -> ...               again, when the request's maximum use is known
    charge(hold, used)                          once after the work, however it ended; tokens
                                                beyond the reserved tokens count too
    renew(holds)                                during the work, before HOLD_S have passed

A hold that is neither charged nor renewed lapses, so a killed gateway gives back its requests and
tokens. The budget counts a lapsed hold in full. The request's real use is not known then, and a
budget must never be exceeded.

Implementations: `memory` (one process), `sqlite` (one machine), `redis` (several machines). One
contract suite tests all.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from gateway.tenant_limits import Limits, RateStatus, Reason

HOLD_S = 60.0
_AT_ONCE = 256


class Amount(msgspec.Struct, frozen=True):
    """The computed and generated tokens of a request, and their cost in micro-units."""

    tokens: int = 0
    cost: int = 0


class Demand(msgspec.Struct, frozen=True):
    """A request that wants to begin. `id` is unique among all requests ever.

    A request that began before its maximum use was known reserves again, with the same id. Then
    `begun` is the amount that the request holds, and `most` replaces this amount. The request is
    not counted a second time. If it is refused, it still holds `begun`.
    """

    id: str
    tenant_id: str
    limits: Limits
    most: Amount
    begun: Amount | None = None


class Hold(msgspec.Struct, frozen=True):
    """A reservation. `epoch` identifies the storage's content, until the storage is emptied."""

    demand: Demand
    epoch: str = ""


class Granted(msgspec.Struct, frozen=True):
    """The verdict that a request may run."""

    hold: Hold
    standing: RateStatus


class Denied(msgspec.Struct, frozen=True):
    """The verdict that a request may not run.

    `retry_after_s` is None if waiting does not help. If the budget is the reason, `budget_left` is
    the micro-units that a request may still cost.
    """

    reason: Reason
    standing: RateStatus
    retry_after_s: float | None
    budget_left: int = 0


Verdict = Granted | Denied


class Limiter(Protocol):
    """A limiter of tenants' requests. Call it from any task of one event loop.

    Raises `Unavailable` (`gateway.errors`) if the limiter's storage does not answer in time or
    cannot write. Damaged or lost storage raises StateLost, and full storage StateDiskFull.
    """

    async def reserve(self, demand: Demand) -> Verdict:
        """Reserve `demand.most` of every limit of the tenant, or reserve nothing."""
        ...

    async def charge(self, hold: Hold, used: Amount) -> None:
        """Release the hold and charge the tokens and cost that the request used."""
        ...

    async def renew(self, holds: Sequence[Hold]) -> None:
        """Let holds lapse HOLD_S from now. Holds that have lapsed stay lapsed."""
        ...

    async def close(self) -> None:
        """Close the limiter's files and connections."""
        ...


def by_tenant(holds: Sequence[Hold]) -> Iterator[tuple[str, list[Hold]]]:
    """Yield the holds of each tenant, in batches small enough for one change."""
    found: dict[str, list[Hold]] = {}
    for hold in holds:
        found.setdefault(hold.demand.tenant_id, []).append(hold)
    for tenant_id, of_tenant in found.items():
        for at in range(0, len(of_tenant), _AT_ONCE):
            yield tenant_id, of_tenant[at : at + _AT_ONCE]
