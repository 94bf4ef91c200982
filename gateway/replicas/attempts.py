"""A request on its way through the replicas, until a replica has answered it.

    sent --first tokens--> begun --end or error--> over: the error goes to the client
      |`--refused for good--------------------------^
      `--died, stopping, full, given up--> sent to another replica, or over if there is none

A request is sent again only if it has not begun, or if its client was shown nothing of the answer.
The earlier replica must not be able to send more. Its connection is closed, it has ended the
request itself, or the request was taken away from it. Each attempt has a separate id, so that a
late end of an earlier attempt ends nothing else.

Elsewhere: which replicas are ready (`members`).
"""

from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from engine.errors import EngineDied, EngineError, EngineUnavailable, QueueFull
from engine.link.event_messages import Failed, Finished, Tokens
from engine.link.gateway_end.outlasting import LEAVE_S, outlasting
from engine.link.interface import OnEnd
from engine.link.messages import Generate
from gateway.replicas.remote_prefill import RemotePrefill
from gateway.routing.router import RoutingChoice

# The maximum number of engines that may die while they answer a request or compute its prompt. A
# request that breaks engines must not be sent to all of them.
MOST_DEATHS = 2
MOST_ATTEMPTS = 16

E = TypeVar("E", Tokens, Finished, Finished | Failed, Tokens | Finished)


@dataclass(slots=True)
class Attempt:
    """A request's attempt on one replica."""

    replica: str
    request: Generate
    on_end: OnEnd | None
    expected_s: float | None = None
    sent_at: float = 0.0
    has_begun: bool = False
    says_it_stops: bool = False
    _is_last: bool | None = None  # None: another replica may still get an attempt
    _held: Finished | Failed | None = None  # an end that came before `_is_last` was known

    def ended(self, end: Finished | Failed) -> None:
        """Handle the message that ends this attempt. Pass it on if it also ends the request."""
        if self._is_last is None and not self.has_begun and not _is_answer(end):
            self.says_it_stops = isinstance(end, Failed) and end.code == EngineUnavailable.code
            self._held = end
        elif self._is_last is not False and self.on_end is not None:
            self.on_end(end)

    def settle(self, *, is_last: bool) -> None:
        """Settle whether the request ends with this attempt. If not, the attempt is not charged."""
        if self._is_last is not None:
            return
        self._is_last = is_last
        if is_last and self._held is not None and self.on_end is not None:
            self.on_end(self._held)


@dataclass(slots=True)
class Attempts:
    """All attempts of one request."""

    request: Generate
    on_end: OnEnd | None
    number: int = 0
    deaths: int = 0
    left: set[str] = field(default_factory=set)
    full: set[str] = field(default_factory=set)
    remote: RemotePrefill | None = None
    # an end that is held back until the counts of `remote` are known
    _unbegun: Finished | Failed | None = None

    @property
    def tokens(self) -> int:
        """The number of tokens of the prompt and of the longest possible answer."""
        return tokens_needed(self.request)

    def next_request(self) -> Generate:
        """Return the request under the next attempt's id."""
        if not self.number:
            return self.request
        return replace(self.request, request_id=f"{self.request.request_id}~{self.number}")

    def next_on(self, choice: RoutingChoice, now: float) -> Attempt:
        """Begin the next attempt at `now`, in seconds, with the source in `choice`."""
        request = self.next_request()
        if choice.source is not None:
            request = replace(request, source=choice.source)
        self.number += 1
        on_end = None if self.on_end is None else self._ended
        return Attempt(choice.replica, request, on_end, choice.first_token_s, now)

    def told(self, event: E) -> E:
        """Rewrite an event, so that tokens of the remote prefill do not count as cached."""
        if self.remote is None or event.reused is None:
            return event
        if isinstance(event, Tokens):
            return replace(event, reused=self.remote.own_reuse(event.reused))
        return self.remote.own_end(event)

    async def end_remote(self) -> None:
        """Cancel the remote prefill. Count its tokens if the request ended without a token."""
        if self.remote is None:
            return
        self.remote.stop()
        if self._unbegun is None:
            return
        try:
            await outlasting(self.remote.over(), LEAVE_S)
        finally:
            self._pass_on(self._unbegun)

    def candidates(self, ready: list[str]) -> list[str]:
        """Select the `ready` replicas to try, if possible only replicas not tried before."""
        room = [name for name in ready if name not in self.full]
        return [name for name in room if name not in self.left] or room

    def may_go_on(self, attempt: Attempt, error: EngineError) -> bool:
        """Return whether another replica may be tried after `attempt` has failed with `error`.

        If the request has begun, only a caller that has shown its client nothing may try again.
        """
        is_lost = isinstance(error, EngineDied | EngineUnavailable)
        if self.number >= MOST_ATTEMPTS or (attempt.has_begun and not is_lost):
            return False
        self.left.add(attempt.replica)
        if attempt.has_begun:
            self.full.clear()  # the full replicas may have room by now
        if isinstance(error, QueueFull):
            self.full.add(attempt.replica)
            return True
        if isinstance(error, EngineDied):
            self.deaths += 1
            there = self.remote is not None and isinstance(self.remote.error, EngineDied)
            return self.deaths + there < MOST_DEATHS
        return isinstance(error, EngineUnavailable)

    def _ended(self, end: Finished | Failed) -> None:
        if self.remote is None or self.remote.is_over or end.completion_tokens:
            self._pass_on(end)
        else:
            self._unbegun = end

    def _pass_on(self, end: Finished | Failed) -> None:
        if self.on_end is not None:
            self.on_end(self.told(end))


def tokens_needed(request: Generate) -> int:
    """Count the tokens of a request's prompt and of its longest possible answer."""
    return request.prompt_tokens + request.sampling.max_tokens


def _is_answer(end: Finished | Failed) -> bool:
    return isinstance(end, Finished) and end.reason != "cancelled"
