"""The last requests that were refused or failed before their answer began, and counts by code.

Knows: this process's own. Does not know: a stream that broke off after it had begun, which the
access log has. Messages are those that the clients got, which quote neither prompts nor keys.
"""

from __future__ import annotations

from collections import Counter, deque

import msgspec

KEPT = 200


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. `client_id` is the client's own id, if it sent one."""

    at: float  # seconds since the epoch
    request_id: str
    client_id: str | None
    tenant: str | None  # its id; None: it was not let in
    route: str  # its template
    status: int
    code: str
    message: str


class LastRefusals:
    """The last KEPT ones of one process."""

    def __init__(self) -> None:
        self.by_code: Counter[str] = Counter()  # ever; codes are the gateway's own, so few
        self._last: deque[Refusal] = deque(maxlen=KEPT)

    def add(self, refusal: Refusal) -> None:
        """Note one."""
        self.by_code[refusal.code] += 1
        self._last.append(refusal)

    def listed(self) -> list[Refusal]:
        """The newest first."""
        return list(reversed(self._last))
