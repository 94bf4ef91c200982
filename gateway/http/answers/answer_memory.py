"""The limits on the bytes of answers held for clients: per answer, per tenant, and in total.

Generating an answer never waits for room. Beyond a limit the longest answer of the tenant with the
most bytes is cut off. No tenant loses an answer because of another tenant's bytes.
"""

from collections import Counter
from typing import Literal, Protocol

Bound = Literal["answer", "tenant", "all"]


class HeldAnswer(Protocol):
    """An answer that holds `size` bytes of memory."""

    @property
    def size(self) -> int:
        """The number of bytes of the answer that are held now."""
        ...

    @property
    def tenant_id(self) -> str | None:
        """The tenant that owns the answer; None for the answer to an unauthenticated peer."""
        ...

    def cut_off(self, beyond: Bound) -> None:
        """End the request and release the answer's bytes. `beyond` names the exceeded limit."""
        ...


class AnswerMemory:
    """The bytes of all answers of one kind, streamed or whole. Used in one event loop."""

    def __init__(self, of_answer: int, of_tenant: int, of_all: int) -> None:
        self._most_of_answer = of_answer
        self._most_of_tenant = of_tenant
        self._most = of_all
        self._held = Counter[str | None]()
        self._total = 0
        self._open: dict[str | None, set[HeldAnswer]] = {}

    def __len__(self) -> int:
        return self._total

    def count(self, answer: HeldAnswer, more: int) -> None:
        """Change the size of `answer` by `more`. Cut off the answers that exceed a limit."""
        tenant_id = answer.tenant_id
        self._total += more
        self._held[tenant_id] += more
        if answer.size:
            self._open.setdefault(tenant_id, set()).add(answer)
        else:
            self._forget(answer)
        if more > 0:
            self._keep_within_bounds(answer)

    def _forget(self, answer: HeldAnswer) -> None:
        of_tenant = self._open[answer.tenant_id]
        of_tenant.discard(answer)
        if not of_tenant:
            del self._open[answer.tenant_id], self._held[answer.tenant_id]

    def _keep_within_bounds(self, grown: HeldAnswer) -> None:
        if grown.size > self._most_of_answer:
            grown.cut_off("answer")
        elif self._held[grown.tenant_id] > self._most_of_tenant:
            self._longest(grown.tenant_id).cut_off("tenant")
        elif self._total > self._most:
            self._longest(max(self._held, key=self._held.__getitem__)).cut_off("all")

    def _longest(self, tenant_id: str | None) -> HeldAnswer:
        return max(self._open[tenant_id], key=lambda answer: answer.size)
