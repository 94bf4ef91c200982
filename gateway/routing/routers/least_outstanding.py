"""A router to the replica with the fewest outstanding prompt tokens, regardless of caches."""

from collections import Counter
from collections.abc import Sequence

from engine.link.cache_events import CacheEvents
from engine.link.event_messages import Reused, Timing
from gateway.routing.prompt import RoutingRequest
from gateway.routing.router import NO_SOURCES, RoutingChoice, Sources


class LeastOutstandingRouter:
    """A `Router` that compares outstanding prompt tokens. Belongs to one event loop."""

    def __init__(self) -> None:
        self._tokens: Counter[str] = Counter()
        # number of tokens of running and ended prompts, by replica
        self._given: Counter[str] = Counter()
        self._sent: dict[str, tuple[str, int]] = {}

    def choose(
        self,
        request: RoutingRequest,  # noqa: ARG002
        ready: Sequence[str],
        sources: Sources = NO_SOURCES,  # noqa: ARG002
    ) -> RoutingChoice:
        return RoutingChoice(min(ready, key=lambda one: (self._tokens[one], self._given[one], one)))

    def sent(self, replica: str, request: RoutingRequest) -> None:
        self._end(request.request_id)
        tokens = request.tokens
        self._sent[request.request_id] = replica, tokens
        self._tokens[replica] += tokens
        self._given[replica] += tokens

    def began(
        self, replica: str, request_id: str, reused: Reused | None, timing: Timing | None
    ) -> None:
        pass

    def ended(self, replica: str, request_id: str) -> None:
        if self._sent.get(request_id, ("", 0))[0] == replica:
            self._end(request_id)

    def heard(self, replica: str, events: CacheEvents) -> None:
        pass

    def gone(self, replica: str) -> None:
        for request_id in [one for one, (where, _) in self._sent.items() if where == replica]:
            self._end(request_id)
        del self._given[replica]
        self._given[replica] = min(self._given.values(), default=0)

    def known_blocks(self, replica: str) -> int:  # noqa: ARG002
        return 0

    def _end(self, request_id: str) -> None:
        replica, tokens = self._sent.pop(request_id, ("", 0))
        self._tokens[replica] -= tokens
