"""The requests of one gateway process on several replicas.

Each request is routed, sent, and watched until it begins. If a replica fails before that, the
request may be sent to another replica.

Elsewhere: what an error means for a request (`attempts`), and which replica is best and what it
fetches (`gateway.routing`).
"""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from engine.errors import EngineError, EngineUnavailable
from engine.link.event_messages import Finished, Tokens
from engine.link.interface import OnEnd, Restarted
from engine.link.messages import FetchSource, Generate
from gateway.replicas.attempts import Attempt, Attempts, tokens_needed
from gateway.replicas.members import Members
from gateway.replicas.remote_prefill import RemotePrefill
from gateway.replicas.routing_notes import NoNotes, RoutingNotes
from gateway.routing.prompt import routing_request
from gateway.routing.remote_prefill import answering, computing
from gateway.routing.route import Route, RouteQuestion, Routing, sent_by
from gateway.routing.router import RoutingChoice, Sources

# seconds after which clients should retry, when a replica that died is usually back
RETRY_AFTER_S = 2.0


class Serving:
    """The requests that one gateway process has on its replicas. Used in one event loop."""

    def __init__(
        self,
        members: Members,
        routing: Routing,
        notes: RoutingNotes | None = None,
    ) -> None:
        self._members = members
        self._routing = routing
        self.notes: RoutingNotes = notes or NoNotes()
        self._unbegun: dict[str, Attempt | RemotePrefill] = {}

    def generate(
        self, request: Generate, on_end: OnEnd | None = None
    ) -> AsyncGenerator[Tokens | Finished | Restarted, None]:
        """Generate from whichever replica answers."""
        return self._answered(Attempts(request, on_end))

    async def _answered(
        self, attempts: Attempts
    ) -> AsyncGenerator[Tokens | Finished | Restarted, None]:
        try:
            while True:
                attempt = await self._begin(attempts)
                engine = self._members.engines[attempt.replica]
                try:
                    async with aclosing(engine.generate(attempt.request, attempt.ended)) as events:
                        async for event in events:
                            if not attempt.has_begun:
                                self._note_begin(attempts, attempt, event)
                            yield attempts.told(event)
                    return
                except EngineError as error:
                    lost = self._lost(attempts, attempt, error)
                finally:
                    self._note_end(attempt)
                if attempt.has_begun:
                    yield Restarted(lost)
                self.notes.moved(attempt.replica)
        finally:
            await attempts.end_remote()

    def rescue(self) -> None:
        """Take unbegun requests from replicas that do not answer, if another replica answers."""
        for sent in list(self._unbegun.values()):
            engine = self._members.engines.get(sent.replica)
            if engine is None or not engine.is_stalled:
                continue
            if self._members.ready(tokens_needed(sent.request)):
                engine.give_up(sent.request.request_id, "the engine does not answer")

    async def _begin(self, attempts: Attempts) -> Attempt:
        while True:
            question = self._question(attempts)
            route = await self._routing.route(question)
            sent = [*sent_by(question.request, route)]
            if all(replica in self._members.engines for replica, _ in sent):
                return self._begun(attempts, route)
            for replica, request in sent:  # a replica may have left meanwhile
                self._routing.ended(replica, request.request_id)

    def _question(self, attempts: Attempts) -> RouteQuestion:
        """Ask which replicas may take a request now; raise EngineUnavailable if none is ready."""
        members, request = self._members, attempts.next_request()
        ready = attempts.candidates(members.ready(attempts.tokens))
        if not ready:
            raise EngineUnavailable("no engine is connected", retry_after_s=RETRY_AFTER_S)
        has_source = request.loads != "never" and not request.modules
        sources = members.sources() if has_source else {}
        answer = answering(ready, members.role)
        is_apart = (
            attempts.number == 0
            and request.use_cache
            and not request.modules
            and members.role(answer[0]) != "prefill"
        )
        return RouteQuestion(
            routing_request(request),
            answer,
            sources,
            computing(ready, members.role) if is_apart else (),
            _source(attempts.remote, sources),
        )

    def _begun(self, attempts: Attempts, route: Route) -> Attempt:
        if route.is_alone:
            self.notes.routed_alone()
        if route.prompt is not None:
            attempts.remote = RemotePrefill(
                route.prompt.replica, attempts.request, route.prompt.source
            )
            self._start(attempts.remote)
        self._note_fetch(route.answer)
        attempt = attempts.next_on(route.answer, time.monotonic())
        self._unbegun[attempt.request.request_id] = attempt
        return attempt

    def _start(self, remote: RemotePrefill) -> None:
        routing, request_id = self._routing, remote.request.request_id
        self._unbegun[request_id] = remote
        if remote.request.source is not None:
            self.notes.fetch("prefix")

        def begun(event: Tokens) -> None:
            self._unbegun.pop(request_id, None)
            routing.began(remote.replica, request_id, event.reused, event.timing)

        remote.start(
            self._members.engines[remote.replica], begun, partial(self._remote_over, remote)
        )

    def _remote_over(self, remote: RemotePrefill) -> None:
        self._unbegun.pop(remote.request.request_id, None)
        self._routing.ended(remote.replica, remote.request.request_id)
        if remote.says_it_stops:
            self._members.says_it_stops(remote.replica)

    def _note_fetch(self, choice: RoutingChoice) -> None:
        if choice.source is not None:
            self.notes.fetch("prefix" if choice.source.request_id is None else "prompt")

    def _note_begin(self, attempts: Attempts, attempt: Attempt, event: Tokens | Finished) -> None:
        attempt.has_begun = True
        self._unbegun.pop(attempt.request.request_id, None)
        if not isinstance(event, Tokens):
            return
        self._routing.began(attempt.replica, event.request_id, event.reused, event.timing)
        if attempt.expected_s is not None:
            self.notes.predicted(attempt.expected_s, time.monotonic() - attempt.sent_at)
        is_fetched = event.reused is not None and event.reused.fetched > 0
        if attempts.remote is not None and not is_fetched:
            attempts.remote.stop()  # stops the prefill, for which the request did not wait

    def _lost(self, attempts: Attempts, attempt: Attempt, error: EngineError) -> EngineError:
        """Return the error if another replica is to be tried, else raise the error."""
        if attempt.says_it_stops:
            self._members.says_it_stops(attempt.replica)
        ready = self._members.ready(attempts.tokens)
        if not (attempts.may_go_on(attempt, error) and attempts.candidates(ready)):
            raise error
        if not attempt.has_begun:
            attempt.settle(is_last=False)
        return error

    def _note_end(self, attempt: Attempt) -> None:
        attempt.settle(is_last=True)
        self._unbegun.pop(attempt.request.request_id, None)
        self._routing.ended(attempt.replica, attempt.request.request_id)


def _source(remote: RemotePrefill | None, sources: Sources) -> FetchSource | None:
    """Return the engine that computed the request's prompt in an earlier attempt, if any."""
    if remote is None or remote.error is not None or remote.replica not in sources:
        return None
    return remote.source(sources[remote.replica])
