"""The residency of a KV block, in one byte: its tiers, and the tier to which it is being copied.

    bit  1 DEVICE     2 HOST     4 DISK         a whole copy lies there
    bit  8 DEVICE    16 HOST    32 DISK         a copy is being written there

All legal changes, for a tier T and a block in the tree:

    begin(T)    none in flight or in T, one in a tier that T copies from            T in flight
    land(T)     T in flight                                                         a copy in T
    fail(T)     T in flight                                                         as before begin
    place(T)    no copy in T or in flight to T (the block was computed again)       a copy in T
    forget(T)   a copy in T, another elsewhere, none in flight                      none in T
    forget(DISK)    ... or one in flight, while a faster copy is there              none on disk
    (drop)      none in flight                                                      no block

So the last copy is forgotten only with the block itself. The source of a copy stays until that copy
is complete.

The states of a run of blocks are `bytes`. Runs are short, and the methods of `bytes` take a tenth
of the time of numpy's operations at this size.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt

from prefix_cache.errors import IllegalTransition
from storage.move import Tier

States = npt.NDArray[np.uint8]

DEVICE, HOST, DISK = 1, 2, 4
BIT = {Tier.DEVICE: DEVICE, Tier.HOST: HOST, Tier.DISK: DISK}
IN_FLIGHT = 8  # factor of a tier's bit while a copy into that tier is under way
MOVING = IN_FLIGHT * (DEVICE | HOST | DISK)
RESIDENT = DEVICE | HOST | DISK
# The tiers from which a copy to each tier may read. Device blocks are copied to the host, or to
# disk without a host tier. Blocks on disk are read to the device, never to the host.
SOURCES = {Tier.DEVICE: HOST | DISK, Tier.HOST: DEVICE, Tier.DISK: DEVICE | HOST}
ILLEGAL = 255


class Change(Enum):
    """The events in a block's residency."""

    BEGIN = "begin"
    LAND = "land"
    FAIL = "fail"
    PLACE = "place"
    FORGET = "forget"

    __hash__ = object.__hash__  # faster than Enum's own hash, for singletons


BEGIN, LAND, FAIL, PLACE, FORGET = Change  # quicker to look up than `Change.LAND`


# Other events leave the fastest copy in place. Below the device, copies only arrive. A disk copy is
# forgotten only if a faster copy exists.
CHANGES_FASTEST = frozenset(
    {(LAND, Tier.DEVICE), (PLACE, Tier.DEVICE), (FORGET, Tier.DEVICE), (FORGET, Tier.HOST)}
)


def is_legal(state: int) -> bool:
    """Return whether a block of the tree may have the residency `state`."""
    resident, moving = state & RESIDENT, state // IN_FLIGHT
    targets = [tier for tier, bit in BIT.items() if moving == bit]
    if moving and not targets:
        return False  # two copies under way at once
    return bool(resident) and not resident & moving and all(resident & SOURCES[t] for t in targets)


def after(event: Change, tier: Tier, state: int) -> int | None:
    """Return the residency after `event`, or None if the event is not legal in `state`."""
    bit, in_flight_bit = BIT[tier], IN_FLIGHT * BIT[tier]
    if event is BEGIN:
        allowed = not state & (MOVING | bit) and bool(state & SOURCES[tier])
        return state | in_flight_bit if allowed else None
    if event is LAND:
        return (state ^ in_flight_bit) | bit if state & in_flight_bit else None
    if event is FAIL:
        return state ^ in_flight_bit if state & in_flight_bit else None
    if event is PLACE:
        return None if state & (in_flight_bit | bit) else state | bit
    elsewhere = state & RESIDENT & ~bit
    free = not state & MOVING or tier is Tier.DISK
    return state ^ bit if state & bit and elsewhere and free else None


def _table(event: Change, tier: Tier) -> bytes:
    follow = [after(event, tier, state) if is_legal(state) else None for state in range(64)]
    legal = bytes(ILLEGAL if state is None else state for state in follow)
    return legal.ljust(256, bytes([ILLEGAL]))


_TABLES = {(event, tier): _table(event, tier) for event in Change for tier in Tier}
WITH = [bytes(state for state in range(64) if state & bits) for bits in range(64)]
# The tiers in which a block has a slot or is being copied to a slot.
TAKEN = [
    [tier for tier in Tier if state & (BIT[tier] | IN_FLIGHT * BIT[tier])] for state in range(64)
]
WITHOUT = [bytes(state for state in range(64) if not state & bits) for bits in range(64)]


def change(states: bytes | bytearray, event: Change, tier: Tier) -> bytes | bytearray:
    """Return the residency states after `event`. Raises IllegalTransition."""
    follow = states.translate(_TABLES[event, tier])
    if ILLEGAL in follow:
        wrong = sorted(
            {state for state, then in zip(states, follow, strict=True) if then == ILLEGAL}
        )
        raise IllegalTransition(f"{event.value} {tier.value} is not legal from {wrong}")
    return follow
