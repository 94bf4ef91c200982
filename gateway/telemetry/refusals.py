"""The latest requests that were refused or failed before an answer began, and counts by code.

Streams that broke off after they had begun are only in the access log. Messages are stored as the
clients received them, and quote no prompts or keys.
"""

from collections import Counter, deque
from collections.abc import Iterable
from itertools import islice
from operator import attrgetter

import msgspec

KEPT = 200
# number of stored refusals of requests without a key; they push out no tenant's refusals
OF_STRANGERS = 50


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A refused request. `client_id` is the client's own id of the request, if it sent an id."""

    at: float  # seconds since the epoch
    request_id: str
    client_id: str | None
    tenant: str | None
    stranger: bool = False
    route: str
    status: int
    code: str
    message: str


class LastRefusals:
    """The latest refusals of one process: KEPT of tenants, and OF_STRANGERS without a key."""

    def __init__(self) -> None:
        self.by_code: Counter[str] = Counter()
        self._of_strangers: deque[Refusal] = deque(maxlen=OF_STRANGERS)
        self._of_others: deque[Refusal] = deque(maxlen=KEPT)

    def add(self, refusal: Refusal) -> None:
        """Add a refusal."""
        self.by_code[refusal.code] += 1
        (self._of_strangers if refusal.stranger else self._of_others).append(refusal)

    def listed(self) -> list[Refusal]:
        """List the refusals, the newest first."""
        return newest([*self._of_strangers, *self._of_others])


def newest(refusals: Iterable[Refusal]) -> list[Refusal]:
    """Select the newest refusals, newest first: KEPT, and OF_STRANGERS without a key."""
    found = sorted(refusals, key=attrgetter("at"), reverse=True)
    strangers = islice((one for one in found if one.stranger), OF_STRANGERS)
    others = islice((one for one in found if not one.stranger), KEPT)
    return sorted([*strangers, *others], key=attrgetter("at"), reverse=True)
