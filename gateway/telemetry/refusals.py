"""The last requests that were refused or failed before their answer began, and counts by code.

Knows: this process's own. Does not know: a stream that broke off after it had begun, which the
access log has. Messages are those that the clients got, which quote neither prompts nor keys.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import islice
from operator import attrgetter

import msgspec

KEPT = 200
OF_STRANGERS = 50  # and no more, so that the others stay however many come without a key


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. `client_id` is the client's own id, if it sent one."""

    at: float  # seconds since the epoch
    request_id: str
    client_id: str | None
    tenant: str | None  # its id; None: it was not let in
    stranger: bool = False  # no key that counts came with it
    route: str  # its template
    status: int
    code: str
    message: str


class LastRefusals:
    """The last ones of one process: KEPT, and OF_STRANGERS of strangers."""

    def __init__(self) -> None:
        self.by_code: Counter[str] = Counter()  # ever; codes are the gateway's own, so few
        self._of_strangers: deque[Refusal] = deque(maxlen=OF_STRANGERS)
        self._of_others: deque[Refusal] = deque(maxlen=KEPT)

    def add(self, refusal: Refusal) -> None:
        """Note one."""
        self.by_code[refusal.code] += 1
        (self._of_strangers if refusal.stranger else self._of_others).append(refusal)

    def listed(self) -> list[Refusal]:
        """List the refusals, the newest first."""
        return newest([*self._of_strangers, *self._of_others])


def newest(refusals: Iterable[Refusal]) -> list[Refusal]:
    """Select the newest, first: KEPT, and OF_STRANGERS of unauthenticated peers."""
    found = sorted(refusals, key=attrgetter("at"), reverse=True)
    strangers = islice((one for one in found if one.stranger), OF_STRANGERS)
    others = islice((one for one in found if not one.stranger), KEPT)
    return sorted([*strangers, *others], key=attrgetter("at"), reverse=True)
