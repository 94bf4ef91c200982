"""How everyone stands in a tier: what they hold of it against what is theirs.

Whose blocks go next, when some have to:

    UNPINNED    published prefixes that nothing pins any more
    OVER_OWN    the one who wants more, if it would be over its ceiling
    OVER        who is over a ceiling
    ABOVE       who is above its floor, and of these who holds most for its weight; for who wants
                more counts what it would hold then
    OWN         the one who wants more, whatever its floor
    BELOW       anyone: a floor is a promise as long as there is another way

Where nobody is below a floor or over a ceiling, that is weighted max-min: it takes from the most
over until all who want more hold the same for their weight.

Knows: counts by owner, of one tier. Does not know: blocks, or the order among one owner's.
"""

from __future__ import annotations

from collections import defaultdict
from enum import IntEnum
from typing import NamedTuple

from prefix_cache.quota import DEFAULT, PUBLISHED, Claim, Quota, fair_shares

FINENESS = 256  # one part in so many of a tier may be taken at once beyond what is just


class Class(IntEnum):
    """Who goes before whom; see above."""

    UNPINNED = 0
    OVER_OWN = 1
    OVER = 2
    ABOVE = 3
    OWN = 4
    BELOW = 5


class Rank(NamedTuple):
    """The owner with the least one gives."""

    sort: Class
    holds: float  # blocks for its weight, negated
    is_other: bool  # of two alike, the one who wants more gives
    owner: str


class Standing:
    """One tier's counts. One owner thread."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.held: defaultdict[str, int] = defaultdict(int)
        self.moved: set[str] = set()  # whose rank may have changed since somebody looked
        self.quotas: dict[str, Quota] = {}
        self.scale = 1.0  # what floors are worth: less than 1 where they do not all fit
        self._leaving: defaultdict[str, int] = defaultdict(int)
        self._floors = 0.0  # sum over all quotas, in tiers

    def charge(self, owner: str, blocks: int) -> None:
        """`owner` holds so many blocks more, or less."""
        self.held[owner] += blocks
        if self.quotas:
            self.moved.add(owner)
            if owner == PUBLISHED:
                self._rescale()

    def leaving(self, owner: str, blocks: int) -> None:
        """So many more, or less, of `owner`'s blocks will be gone when copies have ended."""
        self._leaving[owner] += blocks
        self.moved.add(owner)

    def set_quota(self, owner: str, quota: Quota) -> None:
        """Change an owner's quota."""
        self._floors += quota.floor - self.quotas.get(owner, DEFAULT).floor
        self.quotas[owner] = quota
        self.moved.add(owner)
        self._rescale()

    def level(self, owner: str) -> int:
        """Blocks that are `owner`'s and will stay."""
        return self.held.get(owner, 0) - self._leaving.get(owner, 0)

    def floor(self, owner: str) -> int:
        """Blocks that are promised to `owner`."""
        return int(self.quotas.get(owner, DEFAULT).floor * self.scale * self.total + 1e-6)

    def ceiling(self, owner: str) -> int:
        """The most that `owner` keeps when it has no need of it, in blocks."""
        return int(self.quotas.get(owner, DEFAULT).ceiling * self.total + 1e-6)

    def excess(self, owner: str, more: int = 0) -> int:
        """How many blocks `owner` would be over its ceiling with so many more; 0: not at all."""
        if owner == PUBLISHED or owner not in self.quotas:
            return 0
        return max(self.level(owner) + more - self.ceiling(owner), 0)

    def rank(self, owner: str) -> Rank:
        """Where `owner` stands when another wants more."""
        return self._rank(owner, 0, (Class.OVER, Class.BELOW), is_other=True)

    def own_rank(self, owner: str, more: int) -> Rank:
        """Where `owner` stands when it wants so many more itself."""
        return self._rank(owner, more, (Class.OVER_OWN, Class.OWN), is_other=False)

    def allowance(self, first: Rank, then: Rank | None, more: int) -> int:
        """How many blocks the first may give until it is the next one's turn; 1 at least."""
        if first.sort in (Class.OWN, Class.UNPINNED):
            return self.total
        level = self.level(first.owner) + (0 if first.is_other else more)
        if first.sort in (Class.OVER_OWN, Class.OVER):
            return max(level - self.ceiling(first.owner), 1)
        most = level - self.floor(first.owner) if first.sort is Class.ABOVE else level
        if then is not None and then.sort is first.sort:
            ahead = (then.holds - first.holds) * self._weight(first.owner)
            most = min(most, int(ahead) + max(self.total // FINENESS, 1))
        return max(most, 1)

    def shares(self) -> dict[str, float]:
        """Blocks that everyone who holds some or has a quota would get if all wanted more."""
        owners = {o for o, held in self.held.items() if held} | self.quotas.keys()
        claims = {
            owner: Claim(self.floor(owner), self.ceiling(owner), self._weight(owner))
            for owner in owners - {PUBLISHED}
        }
        return fair_shares(self.total - self.held.get(PUBLISHED, 0), claims)

    def _rank(self, owner: str, more: int, ends: tuple[Class, Class], *, is_other: bool) -> Rank:
        if owner == PUBLISHED:
            return Rank(Class.UNPINNED, 0.0, is_other, owner)
        level = self.level(owner) + more
        over, below = ends
        sort = Class.ABOVE if level > self.floor(owner) else below
        if level > self.ceiling(owner):
            sort = over
        return Rank(sort, -level / self._weight(owner), is_other, owner)

    def _weight(self, owner: str) -> float:
        return self.quotas.get(owner, DEFAULT).weight

    def _rescale(self) -> None:
        """Floors are worth no more than fits beside what is published."""
        room = (self.total - self.held.get(PUBLISHED, 0)) / max(self.total, 1)
        scale = min(1.0, room / self._floors) if self._floors > 1e-9 else 1.0
        if scale != self.scale:
            self.scale = scale
            self.moved.update(self.quotas)
