"""How fast a replica computes and loads tokens, by the first tokens that it has sent.

A replica computes several prompts at a time, so their times overlap; a second of it counts once:

    prompt 1   |==== prefill ====|
    prompt 2         |=== prefill ===|
    counted     1 1 1 1 1 1 1 1 1 2 2

So what is learnt is what the replica gets done, decodes beside it included.

Knows: tokens and seconds. Does not know: what a token costs at which place of a prompt.
"""

from __future__ import annotations

from engine.link.messages import Reused, Timing

KEPT = 0.9  # of what was measured before, at each new measurement
LEAST_TOKENS = 256  # computed: the time of fewer is that of a step, not of its tokens
COMPUTE_S = 1e-4  # a token, before anything was measured
HOST_S, DISK_S = COMPUTE_S / 10, COMPUTE_S / 2  # likewise
PRIOR_TOKENS = 512  # that this is worth


class Rate:
    """Seconds a token, of late."""

    def __init__(self, seconds_per_token: float) -> None:
        """What to expect before the first measurement."""
        self.per_token = seconds_per_token
        self._tokens = float(PRIOR_TOKENS)
        self._seconds = PRIOR_TOKENS * seconds_per_token

    def measured(self, tokens: int, seconds: float) -> None:
        """So many tokens took so long."""
        self._tokens = KEPT * self._tokens + tokens
        self._seconds = KEPT * self._seconds + seconds
        self.per_token = self._seconds / self._tokens


class ReplicaRates:
    """Of one replica. `now` is seconds, monotonic."""

    def __init__(self, compute_s: float = COMPUTE_S) -> None:
        """`compute_s` is what to expect of computing a token: as others take, where they do."""
        self.compute = Rate(compute_s)
        self.host, self.disk = Rate(HOST_S), Rate(DISK_S)
        self._counted_until = float("-inf")

    def began(self, prompt_tokens: int, reused: Reused, timing: Timing, now: float) -> None:
        """A prompt's first token has just come."""
        computed = prompt_tokens - reused.tokens
        seconds = min(timing.prefill, now - self._counted_until)
        self._counted_until = now
        if computed >= LEAST_TOKENS:
            self.compute.measured(computed, seconds)
        host, disk = reused.tiers.host, reused.tiers.disk
        if disk:
            self.disk.measured(disk, max(timing.load - host * self.host.per_token, 0.0))
        elif host:
            self.host.measured(host, timing.load)
