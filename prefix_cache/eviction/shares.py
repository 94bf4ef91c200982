"""Each owner's share of a tier: a floor, a ceiling, and weighted max-min fairness in between.

    share of an owner = its weight x level, but no less than its floor and no more than its ceiling;
                        one level for all, at which the shares fill the tier

Other owners may use the unused part of a share until the share's owner needs it. Partitions
(`partition`) are not lent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

# the owner of published blocks, which are pinned and shared by many tenants; has no quota
PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class Quota:
    """An owner's quota. Floor and ceiling are shares of every tier, from 0 to 1.

    Raises ValueError unless 0 <= floor <= ceiling <= 1 and the weight is positive and finite.
    """

    floor: float = 0.0  # share that other owners cannot take away
    # maximum share of blocks that the owner keeps while its sequences do not use them
    ceiling: float = 1.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.floor <= self.ceiling <= 1.0:
            raise ValueError(f"not 0 <= floor {self.floor} <= ceiling {self.ceiling} <= 1")
        if not 0.0 < self.weight < math.inf:
            raise ValueError(f"the weight {self.weight} is no positive number")


DEFAULT = Quota()


@dataclass(frozen=True, slots=True)
class Claim:
    """A quota in one tier, in blocks."""

    floor: float
    ceiling: float
    weight: float

    def at(self, level: float) -> float:
        """Return the share of this quota at a fairness level."""
        return min(max(self.weight * level, self.floor), self.ceiling)


def fair_shares(room: float, claims: Mapping[str, Claim]) -> dict[str, float]:
    """Divide `room` blocks between owners who all want as many blocks as possible.

    The floors add up to at most `room`. All of `room` is given away unless the ceilings add up to
    less.
    """
    level = _level(room, claims)
    return {owner: claim.at(level) for owner, claim in claims.items()}


def partition(quotas: Mapping[str, Quota]) -> dict[str, float]:
    """Divide a tier permanently: return each owner's fair share as a fraction of 1.

    Floors that add up to more than 1 are scaled down.
    """
    floors = sum(quota.floor for quota in quotas.values())
    scale = min(1.0, 1.0 / floors) if floors else 1.0
    claims = {o: Claim(q.floor * scale, q.ceiling, q.weight) for o, q in quotas.items()}
    return fair_shares(1.0, claims)


def working_area(room: int, longest: Mapping[str, int], parts: Mapping[str, float]) -> int:
    """Compute the size of the working area, which lets each owner run its longest request.

    An owner whose part is the fraction p can hold p * (room - area) + area blocks. The area is
    between a sixteenth and half of `room`. The minimum serves owners that have no part yet.
    """
    lacking = [
        (blocks - parts[owner] * room) / (1.0 - parts[owner])
        for owner, blocks in longest.items()
        if parts[owner] < 1.0
    ]
    needed = max(math.ceil(max(lacking, default=0.0)), room // 16)
    return max(min(needed, max(longest.values(), default=0), room // 2), 0)


def _level(room: float, claims: Mapping[str, Claim]) -> float:
    """Find the level at which the shares add up to `room` or all ceilings are reached.

    The sum of shares is piecewise linear in the level. The sum bends where a share leaves its floor
    or meets its ceiling. The search goes from bend to bend.
    """
    bends = [(c.floor / c.weight, c.weight) for c in claims.values()]
    bends += [(c.ceiling / c.weight, -c.weight) for c in claims.values()]
    level, slope = 0.0, 0.0
    left = room - sum(c.floor for c in claims.values())
    for bend, change in sorted(bends):
        if slope > 0 and left <= (bend - level) * slope:
            return level + left / slope
        left -= (bend - level) * slope
        level, slope = bend, slope + change
    return level
