"""The lengths of a tenant's answers to requests that set no maximum.

An answer without a maximum may fill the context, but almost all answers are much shorter. If each
request reserved the maximum length, a few requests would fill a limit and use a hundredth of it. A
request therefore reserves the length of its tenant's earlier answers. The real use is charged at
the end.

Elsewhere: how much of its limits a tenant has left (`fitting.py`).
"""

import heapq
from collections import deque

START = 256  # tokens expected of a tenant without earlier answers
_LAST = 32
_MAX_TENANTS = 10_000


class AnswerLengths:
    """The lengths of each tenant's latest answers.

    Only the tenants with the latest answers are remembered.
    """

    def __init__(self, max_tenants: int = _MAX_TENANTS) -> None:
        self._max_tenants = max_tenants
        self._lengths: dict[str, deque[int]] = {}

    def expected(self, tenant_id: str) -> int:
        """Return the second greatest length among the tenant's latest 32 answers, in tokens.

        If there were fewer than 32 answers, each missing answer counts as `START` tokens.
        """
        lengths = list(self._lengths.get(tenant_id, ()))
        lengths += [START] * min(2, _LAST - len(lengths))
        _, second = heapq.nlargest(2, lengths)
        return second

    def add(self, tenant_id: str, tokens: int) -> None:
        """Add the length of an answer to the tenant, in tokens."""
        lengths = self._lengths.pop(tenant_id, None)
        if lengths is None:
            lengths = deque(maxlen=_LAST)
            if len(self._lengths) >= self._max_tenants:
                # the tenant that has had no answer for the longest time
                self._lengths.pop(next(iter(self._lengths)))
        lengths.append(tokens)
        self._lengths[tenant_id] = lengths
