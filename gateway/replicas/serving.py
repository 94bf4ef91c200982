"""Requests on several replicas: chosen, sent, watched until they begin, sent elsewhere.

Knows: which request is where. Does not know: what an error says of a request (`attempts`), which
replica is best and what it fetches (`gateway.routing`), or queries (`queries`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial

from engine.errors import EngineError, EngineUnavailable
from engine.link.interface import OnEnd
from engine.link.messages import Finished, Generate, Tokens
from gateway.replicas.attempts import Attempt, Attempts
from gateway.replicas.members import Members
from gateway.replicas.remote_prefill import RemotePrefill
from gateway.replicas.routing_notes import NoNotes, RoutingNotes
from gateway.routing.remote_prefill import (
    RemotePrefillLimits,
    answering,
    computing,
    prefill_choice,
)
from gateway.routing.router import NO_SOURCES, Router, RoutingChoice, Sources

RETRY_AFTER_S = 2.0  # a replica that died is back within seconds


class Serving:
    """The requests of one gateway process. For one event loop."""

    def __init__(
        self,
        members: Members,
        router: Router,
        notes: RoutingNotes | None = None,
        *,
        limits: RemotePrefillLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limits`: of prompts that are computed for others; `clock`: seconds."""
        self._members = members
        self._router = router
        self.notes: RoutingNotes = notes or NoNotes()
        self._limits = limits or RemotePrefillLimits()
        self._clock = clock
        self._unbegun: dict[str, Attempt | RemotePrefill] = {}  # by their request ids

    async def generate(
        self, request: Generate, on_end: OnEnd | None = None
    ) -> AsyncGenerator[Tokens | Finished, None]:
        """As `Engine.generate`, from whichever replica answers."""
        attempts = Attempts(request, on_end)
        try:
            while True:
                attempt = self._begin(attempts)
                engine = self._members.engines[attempt.replica]
                try:
                    async with aclosing(engine.generate(attempt.request, attempt.ended)) as events:
                        async for event in events:
                            if not attempt.has_begun:
                                self._note_begin(attempts, attempt, event)
                            yield attempts.told(event)
                    return
                except EngineError as error:
                    self._go_on(attempts, attempt, error)
                finally:
                    self._note_end(attempt)
        finally:
            if attempts.remote is not None:
                attempts.remote.stop()

    def rescue(self) -> None:
        """Take what has not begun away from replicas that do not answer, if another one does."""
        ready = self._members.ready()
        if not ready:
            return
        for sent in list(self._unbegun.values()):
            engine = self._members.engines.get(sent.replica)
            if engine is not None and engine.is_stalled:
                engine.give_up(sent.request.request_id, "the engine does not answer")

    def _begin(self, attempts: Attempts) -> Attempt:
        """Choose a replica; EngineUnavailable when none is ready."""
        members, request = self._members, attempts.request
        ready = attempts.candidates(members.ready())
        if not ready:
            raise EngineUnavailable("no engine is connected", retry_after_s=RETRY_AFTER_S)
        sources = NO_SOURCES if request.loads == "never" else members.sources()
        choice = self._router.choose(request, answering(ready, members.role), sources)
        if attempts.number == 0:
            attempts.remote = self._remote(request, choice, ready, sources)
        choice = self._with_source(choice, attempts.remote, sources)
        attempt = attempts.next_on(choice, self._clock())
        self._router.sent(attempt.replica, attempt.request)
        self._unbegun[attempt.request.request_id] = attempt
        return attempt

    def _remote(
        self, request: Generate, answer: RoutingChoice, ready: Sequence[str], sources: Sources
    ) -> RemotePrefill | None:
        """The prompt on its way to an engine that computes it for another one, where that pays."""
        members, router = self._members, self._router
        if members.role(answer.replica) == "prefill" or not request.use_cache:
            return None
        able = [name for name in computing(ready, members.role) if name in sources]
        prompt = prefill_choice(router, request, answer, able, sources, self._limits)
        if prompt is None:
            return None
        remote = RemotePrefill(prompt.replica, request, prompt.source)
        self._start(remote)
        return remote

    def _start(self, remote: RemotePrefill) -> None:
        router, request_id = self._router, remote.request.request_id
        router.sent(remote.replica, remote.request)
        self._unbegun[request_id] = remote
        if remote.request.source is not None:
            self.notes.fetch("prefix")

        def begun(event: Tokens) -> None:
            self._unbegun.pop(request_id, None)
            router.began(remote.replica, request_id, event.reused, event.timing)

        remote.start(
            self._members.engines[remote.replica], begun, partial(self._remote_over, remote)
        )

    def _remote_over(self, remote: RemotePrefill) -> None:
        self._unbegun.pop(remote.request.request_id, None)
        self._router.ended(remote.replica, remote.request.request_id)
        if remote.says_it_stops:
            self._members.says_it_stops(remote.replica)

    def _with_source(
        self, choice: RoutingChoice, remote: RemotePrefill | None, sources: Sources
    ) -> RoutingChoice:
        """The choice, with the engine that computes its prompt as the source, if there is one."""
        if remote is not None and remote.replica in sources and remote.error is None:
            self.notes.fetch("prompt")
            return choice._replace(
                source=remote.source(sources[remote.replica]), first_token_s=None
            )
        if choice.source is not None:
            self.notes.fetch("prefix")
        return choice

    def _note_begin(self, attempts: Attempts, attempt: Attempt, event: Tokens | Finished) -> None:
        attempt.has_begun = True
        self._unbegun.pop(attempt.request.request_id, None)
        if not isinstance(event, Tokens):
            return
        self._router.began(attempt.replica, event.request_id, event.reused, event.timing)
        if attempt.expected_s is not None:
            self.notes.predicted(attempt.expected_s, self._clock() - attempt.sent_at)
        is_fetched = event.reused is not None and event.reused.fetched > 0
        if attempts.remote is not None and not is_fetched:
            attempts.remote.stop()  # it was not waited for

    def _go_on(self, attempts: Attempts, attempt: Attempt, error: EngineError) -> None:
        """Return if another replica is to be tried after this error, else raise it."""
        if attempt.says_it_stops:
            self._members.says_it_stops(attempt.replica)
        if not (attempts.may_go_on(attempt, error) and attempts.candidates(self._members.ready())):
            raise error
        attempt.settle(is_last=False)
        self.notes.moved(attempt.replica)

    def _note_end(self, attempt: Attempt) -> None:
        attempt.settle(is_last=True)
        self._unbegun.pop(attempt.request.request_id, None)
        self._router.ended(attempt.replica, attempt.request.request_id)
