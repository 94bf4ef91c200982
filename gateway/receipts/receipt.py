"""A receipt of an erasure, as data, and its signed form.

Numbers are integers and times are text. The signed bytes of a receipt therefore do not depend on
the layout of its JSON.

Elsewhere: how a receipt is made (`erasing`).
"""

from datetime import UTC, datetime
from typing import Literal

import msgspec

from engine.link.erasure import Erasure, TierErasure

Format = Literal["erasure-receipt-1"]
# records that a deletion leaves, which hold no prompt and no answer
KEPT = ("usage counters", "audit log")
FILES = "adapters' files"


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a deleted tenant's erasure at the time `at`.

    `open` lists the parts that are not erased yet. `keys`, `responses`, `schemas` (of prompt
    modules) and `adapters` are the numbers of records deleted from the state.
    """

    format: Format = "erasure-receipt-1"
    id: str
    tenant: str
    name: str
    by: str
    deleted_at: str  # time of the deletion, in UTC, as ISO 8601
    at: str
    flush: str  # id of the flush, by which engines know the erasure
    keys: int
    responses: int
    schemas: int = 0
    adapters: int = 0
    engines: dict[str, Erasure]
    awaited: tuple[str, ...]
    open: tuple[str, ...]
    kept: tuple[str, ...] = KEPT

    @property
    def is_complete(self) -> bool:
        """True if the erasure is complete in every tier of every engine."""
        return not self.open


class SignedReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt and the signature of its fields, in base64url."""

    receipt: Receipt
    signature: str


def moment(at: float) -> str:
    """Write a time, in seconds since the epoch, as ISO 8601 in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def joined(first: Erasure, then: Erasure) -> Erasure:
    """Add up the erasures of a tenant's two flushes in an engine.

    `then`, the later erasure, tells which parts still run.
    """
    counted = [one for one in (first.tiers, then.tiers) if one is not None]
    if len(counted) < 2:
        return msgspec.structs.replace(then, tiers=next(iter(counted), None))
    others = {one.tier: one for one in counted[1]}
    summed = tuple(_sum(one, others.pop(one.tier, None)) for one in counted[0])
    return msgspec.structs.replace(then, tiers=(*summed, *others.values()))


def _sum(one: TierErasure, other: TierErasure | None) -> TierErasure:
    if other is None:
        return one
    return TierErasure(
        tier=one.tier,
        blocks=one.blocks + other.blocks,
        states=one.states + other.states,
        num_bytes=one.num_bytes + other.num_bytes,
    )
