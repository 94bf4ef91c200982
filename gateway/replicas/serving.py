"""Requests on several replicas: chosen, sent, watched until they begin, sent elsewhere.

Knows: which request is where. Does not know: what an error says of a request (`attempts`), which
replica is best (`gateway.routing`), or queries (`queries`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from engine.errors import EngineError, EngineUnavailable
from engine.link.interface import OnEnd
from engine.link.messages import Finished, Generate, Tokens
from gateway.replicas.attempts import Attempt, Attempts
from gateway.replicas.members import Members
from gateway.routing.router import Router

RETRY_AFTER_S = 2.0  # a replica that died is back within seconds


class Serving:
    """The requests of one gateway process. For one event loop."""

    def __init__(
        self, members: Members, router: Router, moved: Callable[[str], None] = lambda _: None
    ) -> None:
        """`moved` is called with the name of a replica whose request is sent to another one."""
        self._members = members
        self._router = router
        self.moved = moved
        self._unbegun: dict[str, Attempt] = {}  # by the attempt's request id

    async def generate(
        self, request: Generate, on_end: OnEnd | None = None
    ) -> AsyncGenerator[Tokens | Finished, None]:
        """As `Engine.generate`, from whichever replica answers."""
        attempts = Attempts(request, on_end)
        while True:
            attempt = self._begin(attempts)
            engine = self._members.engines[attempt.replica]
            try:
                async with aclosing(engine.generate(attempt.request, attempt.ended)) as events:
                    async for event in events:
                        if not attempt.has_begun:
                            self._note_begin(attempt, event)
                        yield event
                return
            except EngineError as error:
                self._go_on(attempts, attempt, error)
            finally:
                self._note_end(attempt)

    def rescue(self) -> None:
        """Take what has not begun away from replicas that do not answer, if another one does."""
        ready = self._members.ready()
        if not ready:
            return
        for attempt in list(self._unbegun.values()):
            engine = self._members.engines.get(attempt.replica)
            if engine is not None and engine.is_stalled:
                engine.give_up(attempt.request.request_id, "the engine does not answer")

    def _begin(self, attempts: Attempts) -> Attempt:
        """Choose a replica; EngineUnavailable when none is ready."""
        ready = attempts.candidates(self._members.ready())
        if not ready:
            raise EngineUnavailable("no engine is connected", retry_after_s=RETRY_AFTER_S)
        attempt = attempts.next_on(self._router.choose(attempts.request, ready))
        self._router.sent(attempt.replica, attempt.request)
        self._unbegun[attempt.request.request_id] = attempt
        return attempt

    def _note_begin(self, attempt: Attempt, event: Tokens | Finished) -> None:
        attempt.has_begun = True
        self._unbegun.pop(attempt.request.request_id, None)
        if isinstance(event, Tokens):
            self._router.began(attempt.replica, event.request_id, event.reused, event.timing)

    def _go_on(self, attempts: Attempts, attempt: Attempt, error: EngineError) -> None:
        """Return if another replica is to be tried after this error, else raise it."""
        if attempt.says_it_stops:
            self._members.says_it_stops(attempt.replica)
        if not (attempts.may_go_on(attempt, error) and attempts.candidates(self._members.ready())):
            raise error
        attempt.settle(is_last=False)
        self.moved(attempt.replica)

    def _note_end(self, attempt: Attempt) -> None:
        attempt.settle(is_last=True)
        self._unbegun.pop(attempt.request.request_id, None)
        self._router.ended(attempt.replica, attempt.request.request_id)
