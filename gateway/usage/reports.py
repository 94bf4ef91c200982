"""The usage reports that any key's holder may ask for, made in limited work and memory.

A report takes no permit, since a tenant that may run no request may still see its usage. One report
is made at a time for each tenant. The bytes of reports count like the bytes of other whole answers.
No report is made for a client that has gone.
"""

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import Request, Response

from gateway.http.answers.whole_answer import as_taken, gathered
from gateway.http.body_memory import OPERATOR
from gateway.http.request_head import running_request, until_gone
from gateway.processes.tenant_turns import TenantTurns

MOST_WAITING = 8


class Reports:
    """The reports that one gateway process makes. Used in one event loop."""

    def __init__(self) -> None:
        self._turns = TenantTurns(MOST_WAITING)

    async def answer(self, request: Request, made: Callable[[], Awaitable[Response]]) -> Response:
        """Answer with the report that `made` makes in the tenant's turn.

        The report's bytes are counted until the answer is sent. Raises TooManyRequests if too many
        of the tenant's reports wait, ClientGone, and the errors of `made`.
        """
        owner = running_request(request.scope).owner

        async def in_turn() -> Response:
            async with self._turns.of(owner):
                return await made()

        response = await until_gone(request.receive, in_turn())
        if owner != OPERATOR:
            gathered(request.scope).grow(len(response.body))
            # a request whose report exceeds the memory limit is cancelled here
            await asyncio.sleep(0)
        return await as_taken(response)
