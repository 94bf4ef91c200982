"""The lengths of a tenant's answers to requests that set no maximum.

Such an answer may be as long as the context allows, but nearly none is. If each request reserved
the most that its answer may need, a few requests would fill a limit and use a hundredth of the
limit. So a request reserves the length that such answers of its tenant had before; the real use is
charged at the end.

Knows: lengths. Does not know: limits, or how much a tenant has left of them (`fitting.py`).
"""

import heapq
from collections import deque

START = 256  # tokens expected of a tenant without earlier answers
_LAST = 32  # answers of a tenant that are remembered
_MAX_TENANTS = 10_000


class AnswerLengths:
    """The lengths of each tenant's last answers, for the tenants that were answered last."""

    def __init__(self, max_tenants: int = _MAX_TENANTS) -> None:
        self._max_tenants = max_tenants
        self._lengths: dict[str, deque[int]] = {}

    def expected(self, tenant_id: str) -> int:
        """Return the second greatest length among the tenant's last 32 answers, in tokens.

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
                self._lengths.pop(next(iter(self._lengths)))  # the tenant answered longest ago
        lengths.append(tokens)
        self._lengths[tenant_id] = lengths
