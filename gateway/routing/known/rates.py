"""The rates at which a replica computes, loads and fetches, learned from requests' first tokens.

A replica computes several prompts at a time, so their times overlap. A second in which several
prompts are computed counts once:

    prompt 1   |==== prefill ====|
    prompt 2         |=== prefill ===|
    counted     1 1 1 1 1 1 1 1 1 2 2

The learned rate is the replica's real throughput, with the decodes that run at the same time.

Blocks are fetched in one of two ways: from this host, or from another host. The source's address
tells the ways apart. A way that was never tried has no measured rate. Before its first fetch,
fetching a token is therefore assumed to take at most a fifth of the time to compute it. After a
fetch that brought nothing, no fetch is tried for a while in the same namespace. Other tenants'
namespaces are not affected. An old slow rate is forgotten, because the way may be faster by now.
"""

from engine.link.address import is_tcp
from engine.link.event_messages import Reused, Timing
from engine.link.messages import FetchSource

KEPT = 0.9  # factor on the weight of earlier measurements at each new measurement
# minimum number of computed tokens of a measurement; fewer tokens measure the time of a step
LEAST_TOKENS = 256
COMPUTE_S = 1e-4  # assumed seconds to compute a token, before any measurement
# assumed seconds to load a token, before any measurement
HOST_S, DISK_S = COMPUTE_S / 10, COMPUTE_S / 2
# maximum assumed time of fetching before any measurement, as a share of the time of computing
UNTRIED = 0.2
FETCH_S = UNTRIED * COMPUTE_S
PRIOR_TOKENS = 512  # the weight of the expected rate, in tokens
# Weight, in tokens, of all replicas' mean rate in the estimate of one replica's rate. Prompts of a
# burst are computed together, and the first that ends seems to have taken all of that time.
PRIOR_COMPUTED = 8_192
OLD_S = 60.0
LATE_S = 60.0  # seconds; if an engine's clock goes back by more, it has restarted
HOLD_OFF_S = 5.0  # seconds without fetches in a namespace after a fetch that brought nothing
# maximum number of namespaces without fetches; beyond this number, the namespace that has been
# without fetches for the longest time may fetch again
MOST_HELD_OFF = 256


class Rate:
    """A rate in seconds per token, from recent measurements."""

    def __init__(self, seconds_per_token: float, worth: float = PRIOR_TOKENS) -> None:
        """Expect `seconds_per_token` until measured, with the weight of `worth` tokens."""
        self.is_measured = False
        self.tokens = self.seconds = 0.0
        self._worth = float(worth)
        self.expect(seconds_per_token)

    def expect(self, seconds_per_token: float) -> None:
        """Change the expected rate, which counts less with each measurement."""
        guessed = self._worth * seconds_per_token
        self.per_token = (guessed + self.seconds) / (self._worth + self.tokens)
        self._expected = seconds_per_token

    def measured(self, tokens: int, seconds: float) -> None:
        """Add a measurement: `tokens` tokens took `seconds`."""
        self.is_measured = True
        self._worth *= KEPT
        self.tokens = KEPT * self.tokens + tokens
        self.seconds = KEPT * self.seconds + seconds
        self.expect(self._expected)


class ReplicaRates:
    """The rates of one replica. `now` is monotonic seconds."""

    def __init__(self, compute_s: float = COMPUTE_S) -> None:
        """Expect `compute_s` seconds for computing a token: the other replicas' rate, if known."""
        self.compute = Rate(compute_s, PRIOR_COMPUTED)
        self.host, self.disk = Rate(HOST_S), Rate(DISK_S)
        # fetch rates, by whether the fetch is over TCP
        self.fetch = {way: Rate(self._untried_fetch()) for way in (True, False)}
        # times until which nothing is fetched, by namespace, the oldest first
        self._no_fetch_until: dict[bytes, float] = {}
        self._counted_until = float("-inf")
        self._fetched_at = dict.fromkeys(self.fetch, float("-inf"))

    def began(
        self,
        prompt_tokens: int,
        reused: Reused,
        timing: Timing,
        now: float,
        source: FetchSource | None = None,
        namespace: bytes = b"",
    ) -> bool:
        """Learn from a prompt's first token. `source` is the replica that it was fetched from.

        `namespace` is the prompt's own namespace, the last of its path. Returns True if `compute`
        has changed.
        """
        if source is not None and source.request_id is None:
            if reused.fetched:
                self._fetched(source, reused.fetched, timing.fetch, now)
            else:
                self._hold_off(namespace, now)
        self._forget_old(now)
        computed = prompt_tokens - reused.tokens
        if computed >= LEAST_TOKENS:
            self.compute.measured(computed, self._counted_once(timing, now))
            self._expect_of_fetches()
        host, disk = reused.tiers.host, reused.tiers.disk
        if disk:
            self.disk.measured(disk, max(timing.load - host * self.host.per_token, 0.0))
        elif host:
            self.host.measured(host, timing.load)
        return computed >= LEAST_TOKENS

    def expect(self, compute_s: float) -> None:
        """Change the expected seconds to compute a token to the mean of all replicas."""
        self.compute.expect(compute_s)
        if not self.compute.is_measured:  # otherwise the next measurement changes these rates
            self._expect_of_fetches()

    def may_fetch(self, namespace: bytes, now: float) -> bool:
        """Return whether blocks may be fetched for this namespace.

        Blocks may be fetched if the latest fetch brought blocks, or is old.
        """
        return now >= self._no_fetch_until.get(namespace, now)

    def _counted_once(self, timing: Timing, now: float) -> float:
        """Return the seconds of a prompt's prefill that no earlier measurement has counted."""
        at = now if timing.at is None else timing.at
        seconds = min(timing.prefill, max(at - self._counted_until, 0.0))
        # With several gateways, events may come late. So seconds before `_counted_until` may have
        # been counted already.
        if not self._counted_until - LATE_S < at < self._counted_until:
            self._counted_until = at
        return seconds

    def _hold_off(self, namespace: bytes, now: float) -> None:
        self._no_fetch_until.pop(namespace, None)
        self._no_fetch_until[namespace] = now + HOLD_OFF_S
        if len(self._no_fetch_until) > MOST_HELD_OFF:
            del self._no_fetch_until[next(iter(self._no_fetch_until))]

    def _fetched(self, source: FetchSource, tokens: int, seconds: float, now: float) -> None:
        if tokens >= LEAST_TOKENS:
            way = is_tcp(source.address)
            self.fetch[way].measured(tokens, seconds)
            self._fetched_at[way] = now

    def _untried_fetch(self) -> float:
        return min(FETCH_S, UNTRIED * self.compute.per_token)

    def _expect_of_fetches(self) -> None:
        untried = self._untried_fetch()
        for rate in self.fetch.values():
            if not rate.is_measured:
                rate.expect(untried)

    def _forget_old(self, now: float) -> None:
        for way, at in self._fetched_at.items():
            if now - at > OLD_S and self.fetch[way].per_token > self._untried_fetch():
                self.fetch[way] = Rate(self._untried_fetch())
