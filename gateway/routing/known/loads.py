"""The load of each replica: the requests that were sent to it and are not over.

Elsewhere: what is cached (`index`).
"""

from collections import Counter
from dataclasses import dataclass, field

from engine.link.event_messages import Reused, Timing
from engine.link.messages import FetchSource
from gateway.routing.known.expected import Expected, Marks
from gateway.routing.known.rates import COMPUTE_S, PRIOR_TOKENS, ReplicaRates
from gateway.routing.prompt import Prompt


@dataclass(slots=True)
class Sent:
    """A request that was sent to a replica and is not over."""

    replica: str
    tokens: int
    uncached: int  # number of uncached tokens of the prompt, as predicted when the request was sent
    marks: Marks
    source: FetchSource | None = None
    namespace: bytes = b""  # the request's own namespace, the last of its path
    has_begun: bool = False


@dataclass(slots=True)
class ReplicaLoad:
    """The load of one replica."""

    rates: ReplicaRates
    # number of prompt tokens that all requests, ended or not, had to compute or fetch
    given: int
    running: int = 0
    queued: int = 0  # number of prompt tokens to compute, of requests that have not begun
    expected: Expected = field(default_factory=Expected)


class Loads:
    """The loads of all replicas. Belongs to one event loop."""

    def __init__(self) -> None:
        self._loads: dict[str, ReplicaLoad] = {}
        self._sent: dict[str, Sent] = {}
        self._fetches: Counter[str] = Counter()

    def fetches_from(self, address: str) -> int:
        """Count the requests that fetch from this address, or are about to."""
        return self._fetches.get(address, 0)

    def of(self, replica: str) -> ReplicaLoad:
        """Return a replica's load.

        A new replica's load begins with the mean rate and the smallest `given` of all replicas.
        """
        load = self._loads.get(replica)
        if load is None:
            load = self._loads[replica] = self._new()
        return load

    def sent(
        self,
        replica: str,
        request_id: str,
        prompt: Prompt,
        cached: int,
        source: FetchSource | None = None,
    ) -> None:
        """Record a sent request, and that its replica will have `cached` blocks of the prompt.

        Fetched tokens are not computed, but have to be cached like computed tokens.
        """
        # ends an earlier attempt, if the request was sent to another replica before
        self._end(request_id)
        uncached = new = prompt.uncached(cached)
        if source is not None:
            uncached = max(min(new, prompt.tokens - source.num_tokens), 1)
            self._fetches[source.address] += 1
        sent = Sent(replica, prompt.tokens, uncached, prompt.marks(), source, prompt.namespace)
        self._sent[request_id] = sent
        load = self.of(replica)
        load.given += new
        load.queued += sent.uncached
        load.running += 1
        load.expected.add(sent.marks)

    def began(
        self,
        replica: str,
        request_id: str,
        reused: Reused | None,
        timing: Timing | None,
        now: float,
    ) -> None:
        """Record that the request's first token has come."""
        sent = self._sent.get(request_id)
        if sent is None or sent.replica != replica or sent.has_begun:
            return
        self._leaves_queue(sent)
        if reused is not None and timing is not None:
            rates = self.of(replica).rates
            if rates.began(sent.tokens, reused, timing, now, sent.source, sent.namespace):
                self._expect_alike()

    def ended(self, replica: str, request_id: str) -> None:
        """Record that the request is over."""
        sent = self._sent.get(request_id)
        if sent is not None and sent.replica == replica:
            self._end(request_id)

    def forget(self, replica: str) -> None:
        """Forget a replica and the requests sent to the replica."""
        for request_id, sent in list(self._sent.items()):
            if sent.replica == replica:
                self._end(request_id)
        self._loads.pop(replica, None)

    def _end(self, request_id: str) -> None:
        sent = self._sent.pop(request_id, None)
        if sent is not None:
            if not sent.has_begun:
                self._leaves_queue(sent)
            self.of(sent.replica).running -= 1

    def _leaves_queue(self, sent: Sent) -> None:
        load = self.of(sent.replica)
        load.queued -= sent.uncached
        load.expected.remove(sent.marks)
        sent.has_begun, sent.marks = True, ()
        if sent.source is not None:
            self._fetches[sent.source.address] -= 1
            if not self._fetches[sent.source.address]:
                # a restarted engine has another address, so its counts are removed
                del self._fetches[sent.source.address]

    def _expect_alike(self) -> None:
        """Expect a replica with few measurements to compute at the mean rate of all.

        With a long queue, an error in one replica's rate outweighs any cached prefix.
        """
        rates = [one.rates for one in self._loads.values()]
        seconds = PRIOR_TOKENS * COMPUTE_S + sum([one.compute.seconds for one in rates])
        tokens = PRIOR_TOKENS + sum([one.compute.tokens for one in rates])
        for one in rates:
            one.expect(seconds / tokens)

    def _new(self) -> ReplicaLoad:
        others = list(self._loads.values())
        rates = [one.rates.compute.per_token for one in others]
        compute_s = sum(rates) / len(rates) if rates else COMPUTE_S
        given = min((one.given for one in others), default=0)
        return ReplicaLoad(ReplicaRates(compute_s), given)
